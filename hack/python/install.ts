/**
 * Installs programs in Python for the tests: schemathesis, which sends generated requests to an HTTP API, sushy-tools, which emulates the
 * Redfish controller of a server, openapi-python-client, which makes a client from an OpenAPI document, and Buildbot, a CI server. They come
 * from PyPI into the user's cache, once for each version of Python. `NAME.txt` pins each package by its hash.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { messageOf } from '../../base/errors.ts';
import { cacheDirectory } from '../cache.ts';
import { withLock } from '../cluster/toolchain/lock.ts';
import { run } from '../guest/run.ts';
import type { ProcessPlan } from '../cluster/processes.ts';

const PYTHON = 'python3';
/** Time limit for 40 MB over a slow connection. */
const INSTALL_MILLISECONDS = 600_000;
/** Time limit of a start of Python on a busy machine. */
const START_MILLISECONDS = 60_000;

type PythonProgram = 'schemathesis' | 'sushy-tools' | 'openapi-python-client' | 'buildbot';

/** Python with the packages of a program. */
interface Python {
  readonly program: string;
  /** Variables that Python needs beside its other environment. */
  readonly environment: Readonly<Record<string, string>>;
}

/** Returns Python with the packages of a program. The first call on a machine installs them. @throws Error that says what is missing. */
export async function pythonWith(name: PythonProgram): Promise<Python> {
  const requirements = join(import.meta.dirname, `${name}.txt`);
  const folder = join(cacheDirectory(), name, await cacheKey(requirements));
  if (!existsSync(folder)) {
    const tell = (line: string): void => void process.stderr.write(`${name}: ${line}\n`);
    await mkdir(join(folder, '..'), { recursive: true });
    await withLock(`${folder}.lock`, tell, async () => {
      // Another process can have installed them meanwhile.
      if (!existsSync(folder)) {
        tell('installing from PyPI');
        await install(name, requirements, folder);
      }
    });
  }
  return { program: PYTHON, environment: { PYTHONPATH: folder } };
}

/** Some packages are compiled for one version of Python. */
async function cacheKey(requirements: string): Promise<string> {
  const { stdout } = await run(
    PYTHON,
    ['-c', 'import sys, sysconfig; print(sys.implementation.cache_tag, sysconfig.get_platform())'],
    { timeoutMilliseconds: START_MILLISECONDS },
  );
  const hash = createHash('sha256').update(await readFile(requirements));
  return `${stdout.trim().replaceAll(/[^\w.]+/g, '-')}-${hash.digest('hex').slice(0, 12)}`;
}

/** The folder appears when it is complete. */
async function install(name: PythonProgram, requirements: string, folder: string): Promise<void> {
  const work = await mkdtemp(`${folder}.new-`);
  try {
    await pip(['--target', work, '--requirement', requirements]);
    await rename(work, folder);
  } catch (error) {
    const needs = 'It needs Python 3.11 or newer, its pip (Debian: python3-pip), and a mirror of PyPI';
    throw new Error(`${name} cannot be installed. ${needs}: ${messageOf(error)}`, { cause: error });
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

async function pip(parameters: readonly string[]): Promise<void> {
  const quiet = ['--quiet', '--disable-pip-version-check', '--no-input', '--root-user-action', 'ignore'];
  // Sources would run code at their build, and need compilers.
  const pinned = ['--require-hashes', '--only-binary', ':all:', '--no-deps'];
  await run(PYTHON, ['-m', 'pip', 'install', ...quiet, ...pinned, ...parameters], {
    timeoutMilliseconds: INSTALL_MILLISECONDS,
  });
}

interface EmulatedSystem {
  /** The last part of its path, `/redfish/v1/Systems/UUID`. */
  readonly uuid: string;
  readonly name: string;
  readonly power: 'On' | 'Off';
}

interface RedfishEmulatorOptions {
  /** Folder of its configuration and state. It is created. */
  readonly folder: string;
  /** Port on 127.0.0.1. */
  readonly port: number;
  readonly systems: readonly EmulatedSystem[];
  readonly certificate: { readonly cert: string; readonly key: string };
  readonly username: string;
  /** bcrypt hash of the password. */
  readonly passwordHash: string;
  /** Further lines of the configuration, in Python. */
  readonly lines?: readonly string[];
}

/**
 * Writes the files of the Redfish emulator of sushy-tools, and returns how to start it. Its driver has systems without machines: it accepts a
 * reset at once, and the power changes 1 to 11 s later. The first call on a machine installs sushy-tools.
 */
export async function planRedfishEmulator(o: RedfishEmulatorOptions): Promise<ProcessPlan> {
  const { program, environment } = await pythonWith('sushy-tools');
  await mkdir(o.folder, { recursive: true });
  const write = async (name: string, content: string): Promise<string> => {
    const path = join(o.folder, name);
    await writeFile(path, content, { mode: 0o600 });
    return path;
  };
  const settings = {
    LISTEN_IP: '127.0.0.1',
    LISTEN_PORT: o.port,
    SSL_CERT: await write('redfish.crt', o.certificate.cert),
    SSL_KEY: await write('redfish.key', o.certificate.key),
    AUTH_FILE: await write('redfish.users', `${o.username}:${o.passwordHash}\n`),
    STATE_DIR: join(o.folder, 'redfish'),
    // 1 is true in Python.
    FAKE_DRIVER: 1,
    FAKE_SYSTEMS: o.systems.map(({ uuid, name, power }) => ({ uuid, name, power_state: power, nics: [] })),
  };
  // Strings, numbers, lists and objects have the same form in JSON and Python.
  const lines = Object.entries(settings).map(
    ([name, value]) => `SUSHY_EMULATOR_${name} = ${JSON.stringify(value)}`,
  );
  const config = await write('redfish.conf', [...lines, ...(o.lines ?? []), ''].join('\n'));
  return {
    name: 'redfish',
    file: program,
    arguments: ['-m', 'sushy_tools.emulator.main', '--config', config],
    environment,
  };
}
