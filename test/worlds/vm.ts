/** A whole Berth with real guests: control plane, operator, and agents that make this machine one or more hosts. */
import { existsSync } from 'node:fs';
import { readdir, readFile, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'vitest';
import { codeOf, isMissing } from '../../base/errors.ts';
import { readMachineFile } from '../../agent/drivers/qemu/state.ts';
import { isAlive, type ProcessIdentity } from '../../agent/machines/process.ts';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import type { GuestArchitecture } from '../../hack/guest.ts';
import { AgentProcess, endMachines } from '../../hack/cluster/agent.ts';
import {
  type Cluster,
  type ClusterOptions,
  type OperatorProcess,
  startCluster,
} from '../../hack/cluster/index.ts';
import { createImage, guestFile, shareGuest } from '../fixtures/images.ts';
import { VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';

/** Emulated guests on a busy machine; on an idle one they take 5 s (amd64) and 11 s (arm64). */
export const BOOT = { deadlineMilliseconds: 180_000, intervalMilliseconds: 200 };
/** What takes no guest's boot, but steps of agent and operator, and the start of a process. */
export const STEP = { deadlineMilliseconds: 90_000, intervalMilliseconds: 100 };
/** The whole of a set-up: a guest image may have to be made first. */
export const SET_UP_MILLISECONDS = 400_000;
/** Several guests on two processors; they are counted by the host. */
const CPU_OVERCOMMIT = 8;

export interface WorldOptions {
  name: string;
  architecture: GuestArchitecture;
  /** Name and IP address of each host; addresses of the loopback network, so that hosts have ports of their own. */
  hosts: Record<string, string>;
  agentConfig?: Record<string, unknown>;
  /** Settings of the agents' section `images`, beside their shared folder; by the host's name where they differ. */
  images?: Record<string, unknown> | ((host: string) => Record<string, unknown>);
  operatorConfig?: Record<string, unknown>;
  audit?: ClusterOptions['audit'];
}

export class World implements AsyncDisposable {
  readonly cluster: Cluster;
  readonly vms: VMs;
  /** Folder of the files that Images may name. */
  readonly shared: string;
  operator: OperatorProcess;
  readonly hosts: Map<string, AgentProcess>;
  readonly #parts: AsyncDisposableStack;

  private constructor(
    { cluster, operator, shared, hosts }: Pick<World, 'cluster' | 'operator' | 'shared' | 'hosts'>,
    parts: AsyncDisposableStack,
  ) {
    this.cluster = cluster;
    this.operator = operator;
    this.vms = new VMs(cluster);
    this.shared = shared;
    this.hosts = hosts;
    this.#parts = parts;
  }

  /** With an Image `guest` of the architecture. */
  static async start(options: WorldOptions): Promise<World> {
    const { architecture, agentConfig, operatorConfig } = options;
    const image = await guestFile(architecture);
    await using parts = new AsyncDisposableStack();
    const cluster = parts.adopt(
      await startCluster({ name: `${options.name}-${process.pid}`, audit: options.audit ?? false }),
      (one) => one.stop(),
    );
    const shared = await shareGuest(cluster, image);
    const operator = await cluster.startOperator(operatorConfig && { config: operatorConfig });
    parts.defer(() => endMachines(cluster.directory));
    const hosts = new Map<string, AgentProcess>();
    parts.defer(async () => void (await Promise.all([...hosts.values()].map((host) => host.stop()))));
    const joinHost = async ([nodeName, address]: [string, string]): Promise<void> => {
      const own = typeof options.images === 'function' ? options.images(nodeName) : options.images;
      const images = { sharedRoots: [shared], ...own };
      const config = { architecture, address, cpuOvercommit: CPU_OVERCOMMIT, images, ...agentConfig };
      hosts.set(nodeName, await AgentProcess.start(cluster, { nodeName, config }));
    };
    await Promise.all(Object.entries(options.hosts).map(joinHost));
    await createImage(cluster, 'guest', { sharedFile: { path: 'guest.qcow2' } });
    return new World({ cluster, operator, shared, hosts }, parts.move());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync();
  }

  /** Makes an Image from a file below {@link shared}. */
  async makeImage(name: string, path: string): Promise<void> {
    await createImage(this.cluster, name, { sharedFile: { path } });
  }

  async makeVM(name: string, spec: Partial<VMSpec> = {}, vms = this.vms): Promise<void> {
    await vms.create(name, { image: 'guest', cpu: 1, memory: '256Mi', ...spec });
  }

  /** What a person sees; in the VMs' namespace. */
  async kubectl(...args: string[]): Promise<string> {
    const timeoutMilliseconds = BOOT.deadlineMilliseconds * 2;
    return (await this.cluster.kubectl(['-n', this.vms.namespace, ...args], { timeoutMilliseconds })).stdout;
  }

  /** As a user changes a VM. */
  async patch(name: string, spec: Partial<VMSpec>): Promise<void> {
    await this.kubectl('patch', 'vm', name, '--type=merge', '-p', JSON.stringify({ spec }));
  }

  /** Events come a moment after the status that they tell of. */
  async expectStory(name: string, pattern: RegExp): Promise<void> {
    await waitFor(`kubectl describe vm ${name} to tell ${pattern.source}`, async () =>
      pattern.test(await this.kubectl('describe', 'vm', name)),
    );
  }

  async waitForCondition(condition: string, name: string): Promise<void> {
    const timeout = `--timeout=${BOOT.deadlineMilliseconds / 1000}s`;
    await this.kubectl('wait', `--for=condition=${condition}`, `vm/${name}`, timeout);
  }

  host(name: string): AgentProcess {
    const host = this.hosts.get(name);
    if (host === undefined) {
      throw new Error(`no host ${name}`);
    }
    return host;
  }

  /** The machine of a VM that runs. */
  async machine(name: string, vms = this.vms): Promise<MachineOnHost> {
    const { metadata, spec } = await vms.pod(name);
    const host = this.host(spec.nodeName ?? '');
    return await MachineOnHost.find(host.dataDirectory, metadata.uid ?? '');
  }
}

/** What a host holds of one machine. */
export class MachineOnHost {
  readonly folder: string;
  readonly process: ProcessIdentity;
  readonly #record: string;

  private constructor(dataDirectory: string, uid: string, process: ProcessIdentity) {
    this.folder = join(dataDirectory, 'machines', uid);
    this.#record = join(dataDirectory, 'pods', `${uid}.json`);
    this.process = process;
  }

  static async find(dataDirectory: string, uid: string): Promise<MachineOnHost> {
    const folder = join(dataDirectory, 'machines', uid);
    const process = await waitFor(`a process of machine ${uid}`, async () => {
      return (await readMachineFile(folder))?.process;
    });
    const machine = new MachineOnHost(dataDirectory, uid, process);
    expect(existsSync(join(machine.folder, 'disk.qcow2'))).toBe(true);
    expect(existsSync(machine.#record)).toBe(true);
    return machine;
  }

  /** Process and disk are no more, now; the agent forgets the Pod once it has seen that this is gone. */
  async expectGone(): Promise<void> {
    expect(await isAlive(this.process)).toBe(false);
    expect(existsSync(this.folder)).toBe(false);
    await waitFor(`record ${this.#record} to be gone`, () => !existsSync(this.#record));
  }

  /** Resolves when process, disk and record are gone. */
  async waitUntilGone(): Promise<void> {
    await waitFor(
      `all of machine ${this.folder} to be gone`,
      async () => !(await isAlive(this.process)) && !existsSync(this.folder) && !existsSync(this.#record),
      STEP,
    );
  }
}

/** Process ids of the QEMU processes that work in machines' folders below `folder`, from the kernel's own list of processes. */
export async function hypervisorsBelow(folder: string): Promise<number[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  const found = await Promise.all(pids.map((pid) => isHypervisorBelow(pid, folder)));
  return pids.filter((_, index) => found[index]).map(Number);
}

async function isHypervisorBelow(pid: string, folder: string): Promise<boolean> {
  try {
    const command = await readFile(`/proc/${pid}/cmdline`, 'utf8');
    return command.includes('qemu-system-') && (await readlink(`/proc/${pid}/cwd`)).startsWith(`${folder}/`);
  } catch (error) {
    if (isMissing(error) || codeOf(error) === 'ESRCH') {
      return false;
    }
    throw error;
  }
}
