/** Runs the operator in its own process, outside the cluster, with its ServiceAccount's rights. */
import { existsSync, writeFileSync } from 'node:fs';
import { get } from 'node:http';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { waitFor } from '../wait.ts';
import { freePorts } from './ports.ts';
import { isAlive, type ProcessRecord, signalProcess, startProcess, stopProcess } from './processes.ts';

export interface OperatorOptions {
  config?: Record<string, unknown>;
  /** Name of the operator's files. A second replica needs another name. */
  name?: string;
  environment?: Record<string, string>;
  /** Whether to run `dist/operator.js`, which `make bundle` writes. */
  bundle?: boolean;
}

export interface OperatorProcess {
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

const ROOT = join(import.meta.dirname, '..', '..');
/** Time limit until the operator is ready. Node loads the sources in 2 s, and in several times that on a busy machine. */
const READY_MILLISECONDS = 60_000;
const PROBE_MILLISECONDS = 2_000;
/** Interval between two checks of a process that is not our child. */
const EXIT_POLL_MILLISECONDS = 25;
/** Time limit of the wait for an end. Tests have their own, shorter deadlines. */
const EXIT_WAIT_MILLISECONDS = 24 * 3_600_000;

/** Starts an operator and resolves when it reports that it is ready. */
export async function startOperator(
  directory: string,
  kubeconfig: string,
  options: OperatorOptions = {},
): Promise<OperatorProcess> {
  const name = options.name ?? 'operator';
  const [metricsPort, healthPort] = (await freePorts(2)) as [number, number];
  const config = join(directory, `${name}.yaml`);
  writeFileSync(
    config,
    stringify({
      ...options.config,
      // Agents of tests have loopback addresses.
      hosts: { addressCIDRs: ['127.0.0.0/8', '10.0.0.0/8'], ...section(options.config, 'hosts') },
      metrics: { address: `127.0.0.1:${metricsPort}`, ...section(options.config, 'metrics') },
      health: { address: `127.0.0.1:${healthPort}`, ...section(options.config, 'health') },
    }),
  );
  const record = await startProcess(directory, {
    name,
    file: process.execPath,
    arguments: [program(options.bundle === true), '--config', config, '--kubeconfig', kubeconfig],
    ...(options.environment === undefined ? {} : { environment: options.environment }),
  });
  const operator = new RunningOperator(directory, record, { metricsPort, healthPort });
  const state = await waitFor(
    `${name} to be ready (see ${operator.logFile})`,
    () => probe(operator, record),
    {
      deadlineMilliseconds: READY_MILLISECONDS,
    },
  ).catch(async (error: unknown) => {
    await operator.stop();
    throw error;
  });
  if (state === 'ended') {
    throw new Error(`${name} ended (see ${operator.logFile})`);
  }
  return operator;
}

function section(config: Record<string, unknown> | undefined, key: string): object {
  const value = config?.[key];
  return typeof value === 'object' && value !== null ? value : {};
}

function program(bundle: boolean): string {
  if (!bundle) {
    return join(ROOT, 'operator', 'main.ts');
  }
  const path = join(ROOT, 'dist', 'operator.js');
  if (!existsSync(path)) {
    throw new Error(`${path} is missing: run make bundle`);
  }
  return path;
}

async function probe(operator: OperatorProcess, record: ProcessRecord): Promise<'ended' | 'ready'> {
  // A process that ended cannot become ready. Its log contains the reason.
  if (!(await isAlive(record))) {
    return 'ended';
  }
  return await new Promise((resolve, reject) => {
    const request = get(`${operator.healthUrl}/readyz`, { timeout: PROBE_MILLISECONDS }, (response) => {
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

class RunningOperator implements OperatorProcess {
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
