/** Builds images with docker or buildah, whichever is installed. */
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../guest/run.ts';

export interface Build {
  tag: string;
  /** Path of the Dockerfile. */
  file: string;
  context: string;
  target?: string;
  arguments?: Readonly<Record<string, string>>;
  labels?: Readonly<Record<string, string>>;
}

export interface Builder {
  readonly name: 'docker' | 'buildah';
  /** Resolves with true if this machine has the image. */
  has(reference: string): Promise<boolean>;
  /**
   * Pulls an image.
   * @throws Error with the message of the registry or the network.
   */
  pull(reference: string): Promise<void>;
  build(build: Build): Promise<void>;
  /** Writes an archive of the image. `ctr images import` gives the image the same name. */
  save(tag: string, archive: string): Promise<void>;
}

/** Time limit of a check in milliseconds. A daemon answers immediately or not at all. */
const PROBE_TIMEOUT_MILLISECONDS = 10_000;
/** Time limit of a pull: 80 MB over a slow connection. */
const PULL_TIMEOUT_MILLISECONDS = 300_000;
/** Time limit of a build, which can fetch packages over a slow connection. With the packages in the base image, it takes 20 s. */
const BUILD_TIMEOUT_MILLISECONDS = 900_000;

/**
 * Returns docker if its daemon answers, otherwise buildah.
 * @throws Error with the package to install.
 */
export async function findBuilder(): Promise<Builder> {
  for (const builder of [docker, buildah]) {
    if (await answers(builder.name)) {
      return builder;
    }
  }
  throw new Error(
    'neither a docker daemon nor buildah is here; install one, on Debian: apt-get install buildah',
  );
}

async function answers(program: string): Promise<boolean> {
  return await succeeds(program, program === 'docker' ? ['info'] : ['--version']);
}

async function succeeds(program: string, parameters: string[]): Promise<boolean> {
  return await run(program, parameters, { timeoutMilliseconds: PROBE_TIMEOUT_MILLISECONDS }).then(
    () => true,
    () => false,
  );
}

function buildParameters({ tag, file, context, target, arguments: given, labels }: Build): string[] {
  return [
    ...(target === undefined ? [] : ['--target', target]),
    ...Object.entries(given ?? {}).flatMap(([name, value]) => ['--build-arg', `${name}=${value}`]),
    ...Object.entries(labels ?? {}).flatMap(([name, value]) => ['--label', `${name}=${value}`]),
    '--tag',
    tag,
    '--file',
    file,
    context,
  ];
}

const docker: Builder = {
  name: 'docker',
  has: async (reference) => await succeeds('docker', ['image', 'inspect', reference]),
  async pull(reference) {
    await run('docker', ['pull', reference], { timeoutMilliseconds: PULL_TIMEOUT_MILLISECONDS });
  },
  async build(build) {
    const parameters = ['build', ...buildParameters(build)];
    await run('docker', parameters, { timeoutMilliseconds: BUILD_TIMEOUT_MILLISECONDS });
  },
  async save(tag, archive) {
    await run('docker', ['save', '--output', archive, tag], {
      timeoutMilliseconds: BUILD_TIMEOUT_MILLISECONDS,
    });
  },
};

/** Isolation of the Dockerfile's commands. A chroot is enough for them, and works in containers and without a container runtime. */
const ISOLATION = { BUILDAH_ISOLATION: process.env['BUILDAH_ISOLATION'] ?? 'chroot' };

const buildah: Builder = {
  name: 'buildah',
  has: async (reference) => await succeeds('buildah', ['inspect', '--type', 'image', reference]),
  async pull(reference) {
    await run('buildah', ['pull', reference], { timeoutMilliseconds: PULL_TIMEOUT_MILLISECONDS });
  },
  async build(build) {
    await run('buildah', ['build', '--layers', ...buildParameters(build)], {
      environment: ISOLATION,
      timeoutMilliseconds: BUILD_TIMEOUT_MILLISECONDS,
    });
  },
  async save(tag, archive) {
    const layout = `${archive}.layout`;
    await rm(layout, { recursive: true, force: true });
    try {
      await run('buildah', ['push', tag, `oci:${layout}:${tag}`], {
        timeoutMilliseconds: BUILD_TIMEOUT_MILLISECONDS,
      });
      await nameForContainerd(join(layout, 'index.json'), tag);
      await run('tar', ['--create', '--file', archive, '--directory', layout, '.'], {
        timeoutMilliseconds: BUILD_TIMEOUT_MILLISECONDS,
      });
    } finally {
      await rm(layout, { recursive: true, force: true });
    }
  },
};

/** Writes containerd's annotation with the image's full name. `ctr` reads OCI's own annotation only as a tag, and adds a prefix. */
async function nameForContainerd(index: string, tag: string): Promise<void> {
  const { manifests, ...rest } = JSON.parse(await readFile(index, 'utf8')) as {
    manifests: { annotations?: Record<string, string> }[];
  };
  const named = manifests.map((manifest) => ({
    ...manifest,
    annotations: { ...manifest.annotations, 'io.containerd.image.name': tag },
  }));
  await writeFile(index, JSON.stringify({ ...rest, manifests: named }));
}
