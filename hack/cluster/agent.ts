/** Runs a host's agent in its own process, for the demo and the tests. */
import { listFolders } from '../../base/files.ts';
import { readFileSync, writeFileSync, mkdirSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { stateFile as emulatorFile } from '../../agent/drivers/emulator/files.ts';
import { readMachineFile } from '../../agent/drivers/qemu/state.ts';
import { stateFile as tartFile } from '../../agent/drivers/tart/files.ts';
import { killForCertain, type ProcessIdentity } from '../../agent/processes/process.ts';
import { NODES } from '../../kube/core.ts';
import { FROM_SOURCES, cacheDirectory } from '../cache.ts';
import { waitFor } from '../wait.ts';
import { isAlive, type ProcessRecord, startProcess, stopProcess } from './processes.ts';
import type { Cluster } from './cluster.ts';
import { isMissing, undefinedIfSync } from '../../base/errors.ts';

interface AgentOptions {
  /** Name of the Node, and of the agent's files. */
  nodeName: string;
  /** Sections that replace those of the agent's configuration. */
  config?: Record<string, unknown>;
  /** Name of the network namespace (`ip netns`) in which the agent runs. */
  networkNamespace?: string;
  /** Variables added to the agent's environment. They must not be secrets outside of tests, because a file of the cluster contains them. */
  environment?: Readonly<Record<string, string>>;
}

const ROOT = join(import.meta.dirname, '..', '..');
/** Time limit until the Node is Ready. The agent first starts a guest to probe the accelerator, then gets two certificates and a Node. */
const READY_MILLISECONDS = 90_000;
/** Time limit of the guest's shutdown when VMs are deleted. */
const MACHINE_END_MILLISECONDS = 30_000;

export class AgentProcess {
  readonly nodeName: string;
  readonly dataDirectory: string;
  readonly logFile: string;
  readonly configFile: string;
  readonly #cluster: Cluster;
  readonly #networkNamespace: string | undefined;
  readonly #environment: Readonly<Record<string, string>>;
  #record: ProcessRecord | undefined;

  private constructor(cluster: Cluster, { nodeName, networkNamespace, environment = {} }: AgentOptions) {
    this.#cluster = cluster;
    this.nodeName = nodeName;
    this.#networkNamespace = networkNamespace;
    this.#environment = environment;
    this.dataDirectory = join(cluster.directory, nodeName);
    this.logFile = join(cluster.directory, `${nodeName}.log`);
    this.configFile = join(cluster.directory, `${nodeName}.yaml`);
  }

  /** Starts the agent for the first time. Resolves when its Node is Ready. */
  static async start(cluster: Cluster, options: AgentOptions): Promise<AgentProcess> {
    const agent = new AgentProcess(cluster, options);
    const { kubeconfig } = await cluster.createAgentBootstrap(options.nodeName);
    const config = {
      nodeName: options.nodeName,
      dataDirectory: agent.dataDirectory,
      bootstrapKubeconfig: kubeconfig,
      address: '127.0.0.1',
      network: { driver: 'user' },
      kubelet: { clientCAFile: join(cluster.directory, 'pki', 'ca.crt') },
      ...options.config,
    };
    writeFileSync(agent.configFile, stringify(config), { mode: 0o600 });
    lendPlatforms(config.dataDirectory);
    await agent.startAgain();
    await agent.ready();
    keepPlatforms(config.dataDirectory);
    return agent;
  }

  /** Starts the agent and does not wait until its Node is Ready. */
  async startAgain(): Promise<void> {
    const command = [process.execPath, join(ROOT, 'agent', 'main.ts'), '--config', this.configFile];
    const inside =
      this.#networkNamespace === undefined ? [] : ['nsenter', `--net=/run/netns/${this.#networkNamespace}`];
    const [file = '', ...rest] = [...inside, ...command];
    this.#record = await startProcess(this.#cluster.directory, {
      name: this.nodeName,
      file,
      arguments: rest,
      environment: { ...FROM_SOURCES, ...this.#environment },
    });
  }

  /** Resolves when the Node is Ready. @throws Error with the end of the log when the agent has ended, or after the deadline. */
  async ready(): Promise<void> {
    const outcome = await waitFor(
      `node ${this.nodeName} to be Ready (see ${this.logFile})`,
      async () => {
        if (!(await isAlive(this.#running()))) {
          return 'ended';
        }
        const node = await this.#cluster.client().get(NODES, { name: this.nodeName });
        const slots = node.status?.allocatable?.['berth.dev/slot'];
        const isReady = node.status?.conditions?.some(
          ({ type, status }) => type === 'Ready' && status === 'True',
        );
        return isReady && slots !== undefined && 'ready';
      },
      { deadlineMilliseconds: READY_MILLISECONDS },
    );
    if (outcome === 'ended') {
      const log = readFileSync(this.logFile, 'utf8');
      throw new Error(`the agent of host ${this.nodeName} has ended: ${log.trimEnd().split('\n').at(-1)}`);
    }
  }

  /** Ends the agent with SIGKILL and waits for its end. Machines continue to run. */
  async kill(): Promise<void> {
    await stopProcess(this.#cluster.directory, this.#running(), 'SIGKILL');
  }

  /** Ends the agent with SIGTERM and waits for its end. Machines continue to run. */
  async stop(): Promise<void> {
    await stopProcess(this.#cluster.directory, this.#running());
  }

  /** Returns the processes of machines in this host's state files, by Pod uid. */
  async machines(): Promise<Map<string, ProcessIdentity>> {
    const root = join(this.dataDirectory, 'machines');
    const found = new Map<string, ProcessIdentity>();
    for (const uid of await listFolders(root)) {
      const process = await readProcess(join(root, uid));
      if (process !== undefined) {
        found.set(uid, process);
      }
    }
    return found;
  }

  /** Kills the agent and every machine, as a power cut does. */
  async powerOff(): Promise<void> {
    await this.kill();
    for (const identity of (await this.machines()).values()) {
      await killForCertain(identity);
    }
  }

  #running(): ProcessRecord {
    if (this.#record === undefined) {
      throw new Error(`agent ${this.nodeName} was not started`);
    }
    return this.#record;
  }
}

/** Kills the remaining machines of all agents of a cluster, whatever the state of the agents. */
export async function endMachines(directory: string): Promise<void> {
  for (const host of await listFolders(directory)) {
    const root = join(directory, host, 'machines');
    for (const uid of await listFolders(root)) {
      const process = await readProcess(join(root, uid));
      if (process !== undefined) {
        await killForCertain(process);
      }
    }
  }
}

/** Returns the process of a VM's machine or of an emulator, by the state file in its folder. */
async function readProcess(folder: string): Promise<ProcessIdentity | undefined> {
  const state =
    (await readMachineFile(folder)) ?? (await emulatorFile(folder).read()) ?? (await tartFile(folder).read());
  return state?.process;
}

/** Deletes every VM and waits for the deletion, which shuts the guests down. */
export async function deleteAllVMs(cluster: Cluster): Promise<void> {
  await cluster.kubectl(
    ['delete', 'vms', '--all', '--all-namespaces', `--timeout=${MACHINE_END_MILLISECONDS / 1000}s`],
    {
      allowFailure: true,
      timeoutMilliseconds: MACHINE_END_MILLISECONDS * 2,
    },
  );
}

const PLATFORMS_FILE = 'platforms.json';
/** Mode with which an agent makes its data directory. */
const DATA_MODE = 0o711;

/**
 * Gives a new agent what an earlier agent of this machine has found out about QEMU, because it takes seconds to try the accelerators. Each
 * agent checks by a key in the file whether the machine is still the same.
 */
export function lendPlatforms(dataDirectory: string): void {
  const text = readPlatforms(cacheDirectory());
  if (text !== undefined) {
    writePlatforms(dataDirectory, text);
  }
}

/** Keeps for later agents what this agent has found out, if both architectures work. Otherwise a later agent tries them again. */
export function keepPlatforms(dataDirectory: string): void {
  const text = readPlatforms(dataDirectory);
  if (text !== undefined && ['amd64', 'arm64'].every((name) => text.includes(`"architecture":"${name}"`))) {
    writePlatforms(cacheDirectory(), text);
  }
}

function readPlatforms(folder: string): string | undefined {
  return undefinedIfSync(isMissing, () => readFileSync(join(folder, PLATFORMS_FILE), 'utf8'));
}

/** Replaces the file. Several processes can do this at the same time, so each needs a temporary file of its own. */
function writePlatforms(folder: string, text: string): void {
  mkdirSync(folder, { recursive: true, mode: DATA_MODE });
  const temporary = join(folder, `${PLATFORMS_FILE}.${process.pid}`);
  writeFileSync(temporary, text, { mode: 0o600 });
  renameSync(temporary, join(folder, PLATFORMS_FILE));
}
