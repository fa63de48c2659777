/**
 * Packages the command `berth` and the agent: one bundle each, with the licences of the packages in it. From a bundle comes an executable
 * file, with Node.js around it ("single executable application"). The command is also an npm package for machines that have Node.js.
 */
import {
  chmod,
  copyFile,
  cp,
  mkdtemp,
  rename,
  rm,
  stat,
  writeFile,
  readdir,
  readFile,
} from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { codeOf } from '../../base/errors.ts';
import packageJson from '../../package.json' with { type: 'json' };
import { run } from '../guest/run.ts';
import { DARWIN_VERSION, LINUX_VERSION, nodeFiles, ownPlatform, type Platform } from './nodes.ts';
import { build } from 'esbuild';
import { ENTRY_POINTS, replacing, UNDICI } from '../bundle.ts';
import { signAdHoc } from './macho.ts';

const ROOT = join(import.meta.dirname, '..', '..');
/** Time limit of a program in milliseconds. The slowest step is the injection into a Mac's binary of 150 MB on a busy machine. */
const STEP_MILLISECONDS = 120_000;
/** Limit of the size of an executable for Linux. That for macOS is larger, because npm has only a larger Node.js for it. */
const LIMIT_BYTES = 130_000_000;
/** Mark in the binary of Node.js that says whether it has a program inside. */
const FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2';

export interface Executable {
  readonly path: string;
  readonly bytes: number;
  readonly nodeVersion: string;
}

/** Programs of which there are executables, by the names of their files. */
type ProgramName = 'berth' | 'berth-agent';

/**
 * Writes the program for the platform into the folder, and `LICENSES.txt` with the licences of its parts.
 *
 * @throws Error when a program is missing, or when the executable is too large.
 */
export async function makeExecutable(
  platform: Platform,
  folder: string,
  program: ProgramName = 'berth',
): Promise<Executable> {
  const isMac = platform.startsWith('darwin');
  const nodeVersion = isMac ? DARWIN_VERSION : LINUX_VERSION;
  const node = await nodeFiles(platform, nodeVersion);
  const work = await mkdtemp(join(tmpdir(), 'berth-executable-'));
  try {
    const { path: main, inputs } = await bundleProgram(program, work);
    const made = join(work, 'made', program);
    await cp(node.executable, made);
    await (isMac ? injectIntoMac : injectIntoLinux)({ platform, main, made, nodeVersion, work });
    const { size: bytes } = await stat(made);
    if (!isMac && bytes > LIMIT_BYTES) {
      throw new Error(`the executable for ${platform} has ${bytes} bytes, and may have ${LIMIT_BYTES}`);
    }
    await chmod(made, 0o755);
    const path = join(folder, program);
    // The file is copied and then renamed. The folder can be on another file system, and the old file can be running.
    await copyFile(made, `${path}.partial`);
    await rename(`${path}.partial`, path);
    await writeFile(join(folder, 'LICENSES.txt'), await licenses(inputs, node.license));
    return { path, bytes, nodeVersion };
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

interface Injection {
  readonly platform: Platform;
  /** Path of the bundle. */
  readonly main: string;
  /** Path of the copy of Node.js that becomes the executable. */
  readonly made: string;
  readonly nodeVersion: string;
  /** Folder for other files. */
  readonly work: string;
}

async function injectIntoLinux({ platform, main, made, nodeVersion, work }: Injection): Promise<void> {
  const own = ownPlatform();
  const { executable: builder } = await nodeFiles(own, nodeVersion);
  const blob = join(work, 'blob');
  // Compiled code belongs to one version and architecture.
  const config = await configFile(work, { main, output: blob, useCodeCache: platform === own });
  await step(builder, '--experimental-sea-config', config);
  if (platform === own) {
    await strip(made);
  }
  const postject = createRequire(import.meta.url).resolve('postject/dist/cli.js');
  await step(process.execPath, postject, made, 'NODE_SEA_BLOB', blob, '--sentinel-fuse', FUSE);
}

async function injectIntoMac({ main, made, nodeVersion, work }: Injection): Promise<void> {
  const { executable: builder } = await nodeFiles(ownPlatform(), nodeVersion);
  const output = `${made}.injected`;
  const config = await configFile(work, { main, output, executable: made, useCodeCache: false });
  await step(builder, '--build-sea', config);
  await writeFile(made, signAdHoc(await readFile(output), basename(made)));
}

async function configFile(work: string, config: object): Promise<string> {
  const path = join(work, 'sea.json');
  const common = { disableExperimentalSEAWarning: true, execArgvExtension: 'none' };
  await writeFile(path, JSON.stringify({ ...common, ...config }));
  return path;
}

/** Removes the symbols, 18 MB, if binutils are installed. */
async function strip(path: string): Promise<void> {
  try {
    await step('strip', path);
  } catch (error) {
    if (codeOf(error) !== 'ENOENT') {
      throw error;
    }
  }
}

async function step(program: string, ...parameters: string[]): Promise<void> {
  // Variables of the caller must not change what Node.js builds.
  await run(program, parameters, {
    timeoutMilliseconds: STEP_MILLISECONDS,
    environment: { NODE_OPTIONS: '' },
  });
}

const PACK_MILLISECONDS = 60_000;
const README = `# berth

${packageJson.description}. This package is the command, and needs Node.js 22 or newer. \`kubectl berth\` is the same command.

    npm install --global berth
    berth --help
`;
/** Keeps the compiled code for the next start, which is then almost twice as fast. */
const START = `#!/usr/bin/env node
require('node:module').enableCompileCache();
require('./berth.cjs');
`;

/** Writes the package into the folder and returns its path. */
export async function makePackage(folder: string): Promise<string> {
  const { version, description, license, engines } = packageJson;
  const work = await mkdtemp(join(tmpdir(), 'berth-package-'));
  try {
    const { path, inputs } = await bundleCommand(work);
    await rename(path, join(work, 'berth.cjs'));
    await writeFile(join(work, 'start.cjs'), START);
    await chmod(join(work, 'start.cjs'), 0o755);
    await cp(join(ROOT, 'LICENSE'), join(work, 'LICENSE'));
    await writeFile(join(work, 'LICENSES.txt'), await licenses(inputs));
    await writeFile(join(work, 'README.md'), README);
    const bin = { berth: 'start.cjs', 'kubectl-berth': 'start.cjs' };
    const files = ['start.cjs', 'berth.cjs', 'LICENSES.txt'];
    const manifest = { name: 'berth', version, description, license, engines, bin, files };
    await writeFile(join(work, 'package.json'), JSON.stringify(manifest, undefined, 2));
    await run('npm', ['pack', '--silent', '--pack-destination', folder], {
      cwd: work,
      timeoutMilliseconds: PACK_MILLISECONDS,
    });
    return join(folder, `berth-${version}.tgz`);
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

/** Libraries that take too long to load. For each library, the part that the command uses. */
const LIGHT: Readonly<Record<string, string>> = {
  undici: `export * from './hack/cli/light/undici.ts';`,
  'prom-client': `export * from './hack/cli/light/prom-client.ts';`,
};

/** Module with which each program begins, and the libraries of which it has only parts. */
const PROGRAMS: Readonly<Record<ProgramName, { entry: string; libraries: typeof LIGHT }>> = {
  berth: { entry: join(ROOT, 'cli', 'main.ts'), libraries: LIGHT },
  'berth-agent': { entry: ENTRY_POINTS.agent, libraries: { undici: UNDICI } },
};

interface ProgramBundle {
  readonly path: string;
  /** Paths of the files in the bundle, relative to the folder of the project. */
  readonly inputs: readonly string[];
}

/** Writes the command as `berth` into the folder. */
export async function bundleCommand(folder: string): Promise<ProgramBundle> {
  return await bundleProgram('berth', folder);
}

/**
 * Writes a program under its name into the folder. It is a script of type CommonJS, because an executable of Node.js takes no other. Each
 * lazy import stays lazy in it.
 */
export async function bundleProgram(name: ProgramName, folder: string): Promise<ProgramBundle> {
  const path = join(folder, name);
  const { entry, libraries } = PROGRAMS[name];
  const { metafile } = await build({
    entryPoints: [entry],
    outfile: `${path}.cjs`,
    absWorkingDir: ROOT,
    bundle: true,
    platform: 'node',
    format: 'cjs',
    target: 'node22',
    // Names stay the same, because people read stack traces.
    minifyWhitespace: true,
    minifySyntax: true,
    legalComments: 'none',
    logLevel: 'warning',
    metafile: true,
    plugins: [replacing(libraries)],
  });
  await rename(`${path}.cjs`, path);
  await chmod(path, 0o755);
  return { path, inputs: Object.keys(metafile.inputs) };
}

const PACKAGE = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//;
const LICENSE_FILE = /^(licen[cs]e|notice)/i;

/**
 * Returns the licence of Berth and the licences of the packages. `inputs` are paths of bundled files. `others` are paths of more licences.
 */
async function licenses(inputs: readonly string[], ...others: readonly string[]): Promise<string> {
  const packages = inputs.map((input) => PACKAGE.exec(input)?.[1]).filter((path) => path !== undefined);
  const texts = await Promise.all([...new Set(packages)].sort().map(readLicense));
  const own = await Promise.all(
    [join(ROOT, 'LICENSE'), ...others].map(async (path) => await readFile(path, 'utf8')),
  );
  return [...own, ...texts].join(`\n${'-'.repeat(80)}\n\n`);
}

/** Returns the licence of the package in the folder. @throws Error when it has none. */
async function readLicense(folder: string): Promise<string> {
  const path = join(ROOT, folder);
  const files = (await readdir(path)).filter((file) => LICENSE_FILE.test(file));
  const manifest = JSON.parse(await readFile(join(path, 'package.json'), 'utf8')) as PackageManifest;
  const { name, version, license } = manifest;
  if (files.length === 0 && license === undefined) {
    throw new Error(`${folder} has no licence`);
  }
  const texts = await Promise.all(files.map(async (file) => await readFile(join(path, file), 'utf8')));
  return [`${name} ${version} (${license})\n`, ...texts].join('\n');
}

interface PackageManifest {
  readonly name: string;
  readonly version: string;
  readonly license?: string;
}
