/** Pulls of single images, without an image store. */
import { execFile } from 'node:child_process';
import { mkdtemp, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { asReasonedError, type ContentLookup } from '../../agent/images/layouts/pull.ts';
import { planPull } from '../../agent/images/layouts/index.ts';
import { Registries, type Repository } from '../../agent/images/oci/repository.ts';
import { Keyring } from '../../agent/images/oci/credentials.ts';
import { parseReference } from '../../api/v1alpha1/reference.ts';
import { startRegistry, type TestRegistry } from '../wires/registry.ts';

const run = promisify(execFile);
const STAT_BLOCK_BYTES = 512;

export function registriesFor({ host, caFile }: TestRegistry): Registries {
  return new Registries({ registries: [{ host, caFile }], allowLoopbackHttp: false });
}

export function repositoryOf(registries: Registries, registry: TestRegistry, name: string): Repository {
  const reference = parseReference(`${registry.host}/${name}`);
  const keyring = Keyring.parse([registry.dockerConfigJson()]);
  return registries.repository(reference, keyring.candidates(reference.registry, reference.repository)[0]);
}

/** A registry, and folders for pulled images. */
export class PullWorld implements AsyncDisposable {
  readonly root: string;
  readonly registry: TestRegistry;
  readonly #registries: Registries;
  readonly #parts: AsyncDisposableStack;

  private constructor(root: string, registry: TestRegistry, parts: AsyncDisposableStack) {
    this.root = root;
    this.registry = registry;
    this.#registries = parts.adopt(registriesFor(registry), (one) => one.close());
    this.#parts = parts;
  }

  static async start(): Promise<PullWorld> {
    await using parts = new AsyncDisposableStack();
    const root = await mkdtemp(join(tmpdir(), 'berth-pulls-'));
    parts.defer(() => rm(root, { recursive: true, force: true }));
    const registry = parts.adopt(await startRegistry({ directory: join(root, 'registry') }), (one) =>
      one.close(),
    );
    return new PullWorld(root, registry, parts.move());
  }

  repository(name: string): Repository {
    return repositoryOf(this.#registries, this.registry, name);
  }

  /** Makes a new folder. It is deleted with the world at the latest. */
  folder(): Promise<string> {
    return mkdtemp(join(this.root, 'pull-'));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync();
  }
}

export interface PullToRun {
  folder: string;
  tag?: string;
  /** Architecture of the machine. The default is amd64. */
  architecture?: 'amd64' | 'arm64';
  lookup?: ContentLookup;
  /** Number of received bytes after which the pull is aborted. */
  abortAfter?: number;
}

export interface Pulled {
  disk: string;
  /** Size of the download in bytes, from the plan. */
  downloadBytes: number;
  roomBytes: number;
  fetched: number;
  spared: number;
}

/**
 * Pulls an image. A pull that is aborted by `abortAfter` returns the bytes that it had fetched. @throws ReasonedError when the
 * pull fails.
 */
export async function pull(repository: Repository, options: PullToRun): Promise<Pulled> {
  const { folder, tag = 'latest', lookup, abortAfter = Number.POSITIVE_INFINITY } = options;
  const { architecture = 'amd64' } = options;
  const cut = new AbortController();
  const resolved = await repository.resolve(tag, architecture, cut.signal);
  const plan = await planPull(repository, resolved, cut.signal);
  const { downloadBytes, roomBytes } = plan;
  const pulled = { disk: join(folder, 'disk'), downloadBytes, roomBytes, fetched: 0, spared: 0 };
  const onBytes = (count: number): void => {
    pulled.fetched += count;
    if (pulled.fetched >= abortAfter) {
      cut.abort(new Error('cut off'));
    }
  };
  const onSpared = (count: number): void => {
    pulled.spared += count;
  };
  try {
    await plan.run({ folder, disk: pulled.disk }, { signal: cut.signal, onBytes, onSpared, lookup });
  } catch (error) {
    if (error !== cut.signal.reason) {
      throw asReasonedError(error, repository.name);
    }
  }
  return pulled;
}

/** Compares two raw disks. @throws Error when their contents differ. */
export async function compareDisks(one: string, other: string): Promise<void> {
  const sizes = [(await stat(one)).size, (await stat(other)).size];
  if (sizes[0] !== sizes[1]) {
    throw new Error(`${one} and ${other} have ${sizes.join(' and ')} bytes`);
  }
  await run('qemu-img', ['compare', '-f', 'raw', '-F', 'raw', one, other]);
}

/** Returns the number of bytes that a file uses on the disk. */
export async function allocated(path: string): Promise<number> {
  return (await stat(path)).blocks * STAT_BLOCK_BYTES;
}
