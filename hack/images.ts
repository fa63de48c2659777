/**
 * Builds the images of the operator (with the HTTP API) and the agent, and writes them to `dist/images/NAME.tar`, for `ctr images import`:
 * as an OCI archive, or in docker's older format where that is all that docker can write.
 *
 *     node hack/images.ts [--base IMAGE] [--tag TAG] [--registry PREFIX]
 *
 * Without --base the Dockerfile's own, and where that cannot be pulled one made from distribution packages.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { parseArgs } from 'node:util';
import packageJson from '../package.json' with { type: 'json' };
import { FILES, pathOf } from '../server/documentation.ts';
import { bundleConsole, bundleInto, ENTRY_POINTS } from './bundle.ts';
import { run } from './guest/run.ts';
import { distributionBase } from './images/base.ts';
import { type Builder, findBuilder } from './images/builder.ts';
import { runCommand } from './command.ts';

const ROOT = join(import.meta.dirname, '..');
const CONTEXT = join(ROOT, 'dist', 'image');
const ARCHIVES = join(ROOT, 'dist', 'images');
const DOCKERFILE = join(ROOT, 'Dockerfile');
const RECIPES = join(import.meta.dirname, 'images');
/** Folder of the context with the files of the HTTP API's page. */
const PAGE_FILES = 'swagger-ui-dist';
const GIT_TIMEOUT_MILLISECONDS = 10_000;

export const IMAGE_NAMES = ['operator', 'agent'] as const;
export type ImageName = (typeof IMAGE_NAMES)[number];
/** Bundles in each image. */
const PROGRAMS: Record<ImageName, readonly (keyof typeof ENTRY_POINTS)[]> = {
  operator: ['operator', 'server', 'runners', 'passwordworker'],
  agent: ['agent'],
};

export interface ImageOptions {
  /** Base image: Debian with Node.js 24 at /usr/local/bin/node. If absent, the program chooses one. */
  base?: string | undefined;
  /** Tag of the images; the version in package.json when absent. */
  tag?: string | undefined;
  /** Registry in the names of the images; `localhost` when absent. */
  registry?: string | undefined;
  progress: (text: string) => void;
}

export interface BuiltImage {
  /** Name of the image, for example `localhost/berth-operator:0.1.0`. */
  reference: string;
  /** Path of the archive. */
  archive: string;
}

/** Builds the images whose sources or base changed since the last build. Other archives stay unchanged. */
export async function buildImages(options: ImageOptions): Promise<Record<ImageName, BuiltImage>> {
  const builder = await findBuilder();
  await makeContext();
  const base = options.base ?? (await chooseBase(builder, options.progress));
  const { registry = 'localhost', tag = packageJson.version } = options;
  const build = async (name: ImageName): Promise<BuiltImage> => {
    const image = {
      reference: `${registry}/berth-${name}:${tag}`,
      archive: join(ARCHIVES, `berth-${name}.tar`),
    };
    await buildImage(builder, { name, base, image, progress: options.progress });
    return image;
  };
  return { operator: await build('operator'), agent: await build('agent') };
}

/** Fetches or makes the base image, so that a later build finds it. */
export async function prepareBase(progress: (text: string) => void): Promise<void> {
  await chooseBase(await findBuilder(), progress);
}

/** Writes all files that the Dockerfile copies into one folder. */
async function makeContext(): Promise<void> {
  await rm(CONTEXT, { recursive: true, force: true });
  const entries = Object.values(PROGRAMS)
    .flat()
    .map((name) => [name, ENTRY_POINTS[name]]);
  await bundleInto(CONTEXT, Object.fromEntries(entries), { extension: '.mjs', sourcemap: false });
  await bundleConsole(join(CONTEXT, 'console'));
  const scripts = (await readdir(RECIPES)).filter((file) => file.endsWith('.sh'));
  for (const script of scripts) {
    await copyFile(join(RECIPES, script), join(CONTEXT, script));
  }
  await mkdir(join(CONTEXT, PAGE_FILES));
  for (const file of [...Object.keys(FILES), 'package.json', 'LICENSE', 'NOTICE']) {
    await copyFile(pathOf(file), join(CONTEXT, PAGE_FILES, file));
  }
  await copyFile(join(ROOT, 'LICENSE'), join(CONTEXT, 'LICENSE'));
  await writeFile(join(CONTEXT, 'sbom.cdx.json'), await billOfMaterials(ROOT, process.versions.node));
}

async function chooseBase(builder: Builder, progress: (text: string) => void): Promise<string> {
  const official = /^ARG BASE=(.*)$/m.exec(await readFile(DOCKERFILE, 'utf8'))?.[1] ?? '';
  if (await builder.has(official)) {
    return official;
  }
  try {
    await builder.pull(official);
    return official;
  } catch (error) {
    const reason = error instanceof Error ? (error.message.trim().split('\n').at(-1) ?? '') : String(error);
    progress(`${official} cannot be pulled (${reason}); distribution packages take its place`);
    return await distributionBase(builder, progress);
  }
}

interface Step {
  name: ImageName;
  base: string;
  image: BuiltImage;
  progress: (text: string) => void;
}

async function buildImage(builder: Builder, { name, base, image, progress }: Step): Promise<void> {
  const labels = await revisionLabels(base);
  const inputs = await inputsOf(name, { reference: image.reference, labels, builder: builder.name });
  const stamp = `${image.archive}.inputs`;
  const isWritten = existsSync(image.archive) && existsSync(stamp);
  if (isWritten && (await readFile(stamp, 'utf8')) === inputs && (await builder.has(image.reference))) {
    progress(`${image.reference} is up to date`);
    return;
  }
  const began = performance.now();
  await mkdir(ARCHIVES, { recursive: true });
  await rm(stamp, { force: true });
  await builder.build({
    tag: image.reference,
    file: DOCKERFILE,
    context: CONTEXT,
    target: name,
    arguments: { BASE: base },
    labels,
  });
  await builder.save(image.reference, `${image.archive}.partial`);
  await rename(`${image.archive}.partial`, image.archive);
  await writeFile(stamp, inputs);
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  const megabytes = ((await stat(image.archive)).size / 1e6).toFixed(1);
  progress(`${image.reference}: ${megabytes} MB, ${seconds} s by ${builder.name}, ${image.archive}`);
}

async function revisionLabels(base: string): Promise<Record<string, string>> {
  const git = async (...parameters: string[]): Promise<string> =>
    (
      await run('git', parameters, { cwd: ROOT, timeoutMilliseconds: GIT_TIMEOUT_MILLISECONDS })
    ).stdout.trim();
  return {
    'org.opencontainers.image.version': packageJson.version,
    'org.opencontainers.image.revision': await git('rev-parse', 'HEAD'),
    // The label has the time of the commit and not of the build. The same sources therefore give the same label.
    'org.opencontainers.image.created': await git('log', '-1', '--format=%cI'),
    'org.opencontainers.image.base.name': base,
  };
}

async function inputsOf(name: ImageName, settings: object): Promise<string> {
  const hash = createHash('sha256')
    .update(JSON.stringify(settings))
    .update(await readFile(DOCKERFILE));
  const others = IMAGE_NAMES.filter((other) => other !== name)
    .flatMap((other) => PROGRAMS[other])
    .map((program) => `${program}.mjs`);
  const entries = await readdir(CONTEXT, { recursive: true, withFileTypes: true });
  const files = entries
    .filter((entry) => entry.isFile())
    .map((entry) => relative(CONTEXT, join(entry.parentPath, entry.name)))
    .filter((file) => !others.includes(file))
    .sort();
  for (const file of files) {
    hash.update(file).update(await readFile(join(CONTEXT, file)));
  }
  return hash.digest('hex');
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: { base: { type: 'string' }, tag: { type: 'string' }, registry: { type: 'string' } },
  });
  await buildImages({ ...values, progress: (text) => process.stdout.write(`images: ${text}\n`) });
}

/** Time limit of `npm sbom`, which reads only package-lock.json. */
const SBOM_TIMEOUT_MILLISECONDS = 60_000;

/** Property with which npm marks packages that only development needs. */
const DEVELOPMENT = 'cdx:npm:package:development';

interface Component {
  'bom-ref': string;
  type: string;
  name: string;
  version: string;
  purl: string;
  properties?: { name: string }[];
}

interface CycloneDx {
  serialNumber?: string;
  metadata: { timestamp?: string; component: { name: string; type: string } };
  components: Component[];
  dependencies: { ref: string; dependsOn: string[] }[];
}

/**
 * Returns the list as CycloneDX JSON, from package-lock.json in `root`. It does not contain Debian's packages, because scanners
 * read them from the packages' database in the images. The same input gives the same text.
 */
async function billOfMaterials(root: string, nodeVersion: string): Promise<string> {
  // The option --omit=dev is not used. It would also leave out packages that both the programs and their tests need.
  const { stdout } = await run('npm', ['sbom', '--package-lock-only', '--sbom-format=cyclonedx'], {
    cwd: root,
    timeoutMilliseconds: SBOM_TIMEOUT_MILLISECONDS,
  });
  const { serialNumber: _, metadata, ...bill } = JSON.parse(stdout) as CycloneDx;
  const { timestamp: __, ...about } = metadata;
  const node = { 'bom-ref': `node@${nodeVersion}`, type: 'platform', name: 'node', version: nodeVersion };
  const components = [
    ...bill.components.filter(
      ({ properties }) => !properties?.some((property) => property.name === DEVELOPMENT),
    ),
    { ...node, purl: `pkg:generic/node@${nodeVersion}` },
  ];
  const present = new Set(components.map((component) => component['bom-ref']));
  const document = {
    ...bill,
    // npm would use the name of the checkout's folder.
    metadata: { ...about, component: { ...about.component, name: 'berth', type: 'application' } },
    components,
    dependencies: bill.dependencies
      .filter(({ ref }) => present.has(ref) || ref.startsWith('berth@'))
      .map(({ ref, dependsOn }) => ({ ref, dependsOn: dependsOn.filter((name) => present.has(name)) })),
  };
  return `${JSON.stringify(document, undefined, 2)}\n`;
}

if (import.meta.main) {
  await runCommand(main);
}
