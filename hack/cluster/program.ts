/**
 * Runs our programs in their own processes, outside the cluster: the operator with the rights of its ServiceAccount, and the HTTP API, whose
 * callers bring their own tokens.
 */
import { existsSync, writeFileSync } from 'node:fs';
import { get } from 'node:http';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { bundleInto, ENTRY_POINTS } from '../bundle.ts';
import { FROM_SOURCES } from '../cache.ts';
import { waitFor } from '../wait.ts';
import { isAlive, type ProcessRecord, signalProcess, startProcess, stopProcess } from './processes.ts';
import { freePorts } from './ports.ts';
import { createKey } from '../../kube/certificates/certificate.ts';
import { createAuthority, issue } from './authority.ts';

interface ProgramProcess {
  readonly pid: number;
  readonly metricsUrl: string;
  readonly healthUrl: string;
  readonly logFile: string;
  /** Resolves when the process has ended, for any reason. */
  readonly stopped: Promise<void>;
  /** Sends a signal. Resolves with false when the process has already ended. */
  kill(signal: NodeJS.Signals): Promise<boolean>;
  /** Ends the process with SIGTERM and waits for its end. After 10 s the process is killed. */
  stop(): Promise<void>;
}

export interface ProgramStart {
  /** Folder of the program in the sources. */
  program: 'operator' | 'runners' | 'server';
  /** Name of the process and of its files. */
  name: string;
  kubeconfig: string;
  /** Content of the configuration file. */
  config: object;
  metricsPort: number;
  healthPort: number;
  environment?: Record<string, string> | undefined;
  /** Whether to run the bundle in `dist/`, which `make bundle` writes. */
  bundle?: boolean | undefined;
  /** Flags of Node.js. */
  flags?: readonly string[] | undefined;
}

const ROOT = join(import.meta.dirname, '..', '..');
/** Time limit until a program is ready. Node loads the sources in 2 s, and in several times that on a busy machine. */
const READY_MILLISECONDS = 60_000;
const PROBE_MILLISECONDS = 2_000;
/** Interval between two checks of a process that is not our child. */
const EXIT_POLL_MILLISECONDS = 25;
/** Time limit of the wait for an end. Tests have their own, shorter deadlines. */
const EXIT_WAIT_MILLISECONDS = 24 * 3_600_000;

/** Starts a program and resolves when it reports that it is ready. */
async function startProgram(directory: string, start: ProgramStart): Promise<ProgramProcess> {
  const { name, kubeconfig, environment, bundle = false, flags = [] } = start;
  const config = join(directory, `${name}.yaml`);
  writeFileSync(config, stringify(start.config));
  const record = await startProcess(directory, {
    name,
    file: process.execPath,
    arguments: [...flags, mainFile(start), '--config', config, '--kubeconfig', kubeconfig],
    environment: { ...(bundle ? {} : FROM_SOURCES), ...environment },
  });
  const running = new RunningProgram(directory, record, start);
  const state = await waitFor(`${name} to be ready (see ${running.logFile})`, () => probe(running, record), {
    deadlineMilliseconds: READY_MILLISECONDS,
  }).catch(async (error: unknown) => {
    await running.stop();
    throw error;
  });
  if (state === 'ended') {
    throw new Error(`${name} ended (see ${running.logFile})`);
  }
  return running;
}

function mainFile({ program, bundle = false }: ProgramStart): string {
  if (!bundle) {
    return join(ROOT, program, 'main.ts');
  }
  const path = join(ROOT, 'dist', `${program}.js`);
  if (!existsSync(path)) {
    throw new Error(`${path} is missing: run make bundle`);
  }
  return path;
}

async function probe(running: ProgramProcess, record: ProcessRecord): Promise<'ended' | 'ready'> {
  // A process that ended cannot become ready. Its log contains the reason.
  if (!(await isAlive(record))) {
    return 'ended';
  }
  return await new Promise((resolve, reject) => {
    const request = get(`${running.healthUrl}/readyz`, { timeout: PROBE_MILLISECONDS }, (response) => {
      response.resume();
      if (response.statusCode === 200) {
        resolve('ready');
      } else {
        reject(new Error(`readyz: HTTP ${response.statusCode}`));
      }
    });
    request.once('timeout', () => request.destroy(new Error('readyz: no answer')));
    request.once('error', reject);
  });
}

class RunningProgram implements ProgramProcess {
  readonly pid: number;
  readonly metricsUrl: string;
  readonly healthUrl: string;
  readonly logFile: string;
  readonly #directory: string;
  readonly #record: ProcessRecord;
  #stopped: Promise<void> | undefined;

  constructor(directory: string, record: ProcessRecord, ports: { metricsPort: number; healthPort: number }) {
    this.#directory = directory;
    this.#record = record;
    this.pid = record.pid;
    this.metricsUrl = `https://127.0.0.1:${ports.metricsPort}/metrics`;
    this.healthUrl = `http://127.0.0.1:${ports.healthPort}`;
    this.logFile = join(directory, `${record.name}.log`);
  }

  get stopped(): Promise<void> {
    this.#stopped ??= waitFor(`${this.#record.name} to end`, async () => !(await isAlive(this.#record)), {
      deadlineMilliseconds: EXIT_WAIT_MILLISECONDS,
      intervalMilliseconds: EXIT_POLL_MILLISECONDS,
    }).then(() => undefined);
    return this.#stopped;
  }

  kill(signal: NodeJS.Signals): Promise<boolean> {
    return signalProcess(this.#record, signal);
  }

  async stop(): Promise<void> {
    await stopProcess(this.#directory, this.#record);
  }
}

export interface OperatorProgram {
  config?: Record<string, unknown>;
  /** Name of the operator's files. A second replica needs another name. */
  name?: string;
  environment?: Record<string, string>;
  /** Whether to run `dist/operator.js`, which `make bundle` writes. */
  bundle?: boolean;
  /** Flags of Node.js. */
  flags?: readonly string[];
}

export type OperatorProcess = ProgramProcess;

/** Starts an operator and resolves when it reports that it is ready. */
export async function startOperator(
  directory: string,
  kubeconfig: string,
  { config, name = 'operator', environment, bundle, flags }: OperatorProgram = {},
): Promise<OperatorProcess> {
  const [metricsPort, healthPort] = (await freePorts(2)) as [number, number];
  return await startProgram(directory, {
    program: 'operator',
    name,
    kubeconfig,
    config: {
      ...config,
      // Agents of tests have loopback addresses.
      hosts: { addressCIDRs: ['127.0.0.0/8', '10.0.0.0/8'], ...section(config, 'hosts') },
      metrics: { address: `127.0.0.1:${metricsPort}`, ...section(config, 'metrics') },
      health: { address: `127.0.0.1:${healthPort}`, ...section(config, 'health') },
    },
    metricsPort,
    healthPort,
    environment,
    bundle,
    flags,
  });
}

export interface RunnersProgram {
  /** Namespaces whose RunnerSets are served. */
  namespaces: readonly string[];
  /** Servers that may have private addresses, for example a stub of GitHub on loopback. */
  privateServers: readonly string[];
  /** Namespace whose objects all sets can name. The usual one when absent. */
  defaultNamespace?: string | undefined;
}

/** Starts the bundle of the runners for GitHub, as its image does. Resolves when it reports that it is ready. */
export async function startRunners(
  directory: string,
  kubeconfig: string,
  { namespaces, privateServers, defaultNamespace }: RunnersProgram,
): Promise<ProgramProcess> {
  await bundleInto(join(ROOT, 'dist'), { runners: ENTRY_POINTS.runners });
  const [metricsPort, healthPort] = (await freePorts(2)) as [number, number];
  return await startProgram(directory, {
    program: 'runners',
    name: 'runners',
    kubeconfig,
    config: {
      namespaces: {
        served: namespaces,
        ...(defaultNamespace !== undefined && { default: defaultNamespace }),
      },
      privateServers,
      metrics: { address: `127.0.0.1:${metricsPort}` },
      health: { address: `127.0.0.1:${healthPort}` },
    },
    metricsPort,
    healthPort,
    environment: { MALLOC_ARENA_MAX: '1' },
    bundle: true,
  });
}

/** Returns a section of a configuration, or an empty one. */
function section(config: Record<string, unknown> | undefined, key: string): object {
  const value = config?.[key];
  return typeof value === 'object' && value !== null ? value : {};
}

export interface ServerOptions {
  config?: Record<string, unknown>;
  /** Name of the server's files. A second replica needs another name. */
  name?: string;
  environment?: Record<string, string>;
  /** Whether to run `dist/server.js`, which `make bundle` writes. */
  bundle?: boolean;
}

export interface ServerProcess {
  /** Base address, `https://127.0.0.1:PORT`. */
  readonly url: string;
  /** Base address of the power API. It listens only if the configuration enables it. */
  readonly powerUrl: string;
  /** Certificate of the authority that signed the server's certificate, as PEM. */
  readonly authority: string;
  readonly process: ProgramProcess;
}

/** Starts the server and resolves when it reports that it is ready. */
export async function startServer(
  directory: string,
  kubeconfig: string,
  { config, name = 'server', environment, bundle }: ServerOptions = {},
): Promise<ServerProcess> {
  const [port, powerPort, metricsPort, healthPort] = (await freePorts(4)) as [number, number, number, number];
  const authority = await createAuthority('berth-server-authority');
  const key = await createKey();
  const certificate = await issue(authority, {
    commonName: 'berth-server',
    key,
    ipAddresses: ['127.0.0.1'],
    usages: ['server'],
  });
  const files = {
    certificateFile: join(directory, `${name}.crt`),
    keyFile: join(directory, `${name}.key`),
  };
  writeFileSync(files.certificateFile, certificate);
  writeFileSync(files.keyFile, key.pem, { mode: 0o600 });
  const process = await startProgram(directory, {
    program: 'server',
    name,
    kubeconfig,
    config: {
      ...config,
      http: { address: `127.0.0.1:${port}`, ...files, ...section(config, 'http') },
      power: { address: `127.0.0.1:${powerPort}`, ...section(config, 'power') },
      metrics: { address: `127.0.0.1:${metricsPort}`, ...section(config, 'metrics') },
      health: { address: `127.0.0.1:${healthPort}`, ...section(config, 'health') },
    },
    metricsPort,
    healthPort,
    environment,
    bundle,
  });
  return {
    url: `https://127.0.0.1:${port}`,
    powerUrl: `https://127.0.0.1:${powerPort}`,
    authority: authority.certificate,
    process,
  };
}
