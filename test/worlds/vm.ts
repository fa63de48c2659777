/** A complete Berth with real guests: control plane, operator, and agents that make this machine one or more hosts. */
import { existsSync, readFileSync, readlinkSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'vitest';
import { codeOf, isMissing } from '../../base/errors.ts';
import { readMachineFile } from '../../agent/drivers/qemu/state.ts';
import { isAlive, type ProcessIdentity } from '../../agent/processes/process.ts';
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
import type { ForwardClock } from '../support/forwardclock.ts';
import { waitFor } from '../../hack/wait.ts';

/** Time limit for the boot of emulated guests on a busy machine. On an idle machine they take 5 s (amd64) and 11 s (arm64). */
export const BOOT = { deadlineMilliseconds: 180_000, intervalMilliseconds: 200 };
/** Time limit for steps of agent and operator and for the start of a process, without a guest's boot. */
export const STEP = { deadlineMilliseconds: 90_000, intervalMilliseconds: 100 };
/** Time limit of the whole set-up, in milliseconds. It is long, because a guest image may have to be made first. */
export const SET_UP_MILLISECONDS = 400_000;
/** Overcommit of processors. With it, several guests fit on a machine with two processors. */
const CPU_OVERCOMMIT = 8;

export interface WorldOptions {
  name: string;
  architecture: GuestArchitecture;
  /** Name and IP address of each host. The addresses are in the loopback network, so that each host has its own ports. */
  hosts: Record<string, string>;
  agentConfig?: Record<string, unknown>;
  /** Further settings of the agents' section `images`, for all hosts or by the host's name. */
  images?: Record<string, unknown> | ((host: string) => Record<string, unknown>);
  operatorConfig?: Record<string, unknown>;
  audit?: ClusterOptions['audit'];
  /** Clock of the operator and the agents. */
  clock?: ForwardClock;
  authentication?: ClusterOptions['authentication'];
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

  /** Starts a world with an Image `guest` of the architecture. */
  static async start(options: WorldOptions): Promise<World> {
    const { architecture, agentConfig, operatorConfig, authentication, clock } = options;
    const image = await guestFile(architecture);
    await using parts = new AsyncDisposableStack();
    const cluster = parts.adopt(
      await startCluster({
        name: `${options.name}-${process.pid}`,
        audit: options.audit ?? false,
        ...(authentication !== undefined && { authentication }),
      }),
      (one) => one.stop(),
    );
    const shared = await shareGuest(cluster, image);
    parts.defer(() => endMachines(cluster.directory));
    const hosts = new Map<string, AgentProcess>();
    parts.defer(async () => void (await Promise.all([...hosts.values()].map((host) => host.stop()))));
    const joinHost = async ([nodeName, address]: [string, string]): Promise<void> => {
      const own = typeof options.images === 'function' ? options.images(nodeName) : options.images;
      const images = { sharedRoots: [shared], ...own };
      const config = { architecture, address, cpuOvercommit: CPU_OVERCOMMIT, images, ...agentConfig };
      const environment = clock?.environment(nodeName) ?? {};
      hosts.set(nodeName, await AgentProcess.start(cluster, { nodeName, config, environment }));
    };
    // The agents load while the operator does, which then lets them join.
    const [operator] = await Promise.all([
      cluster.startOperator({
        ...(operatorConfig && { config: operatorConfig }),
        ...(clock && { environment: clock.environment('operator') }),
      }),
      ...Object.entries(options.hosts).map(joinHost),
    ]);
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

  /** Returns the output of kubectl, as a person sees it, in the namespace of the VMs. */
  async kubectl(...args: string[]): Promise<string> {
    const timeoutMilliseconds = BOOT.deadlineMilliseconds * 2;
    return (await this.cluster.kubectl(['-n', this.vms.namespace, ...args], { timeoutMilliseconds })).stdout;
  }

  /** Changes a VM as a user does. */
  async patch(name: string, spec: Partial<VMSpec>): Promise<void> {
    await this.kubectl('patch', 'vm', name, '--type=merge', '-p', JSON.stringify({ spec }));
  }

  /** Waits until the description of a VM matches. Events appear shortly after the status change that they report. */
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

  /** Returns the machine of a running VM. */
  async machine(name: string, vms = this.vms): Promise<MachineOnHost> {
    const { metadata, spec } = await vms.pod(name);
    const host = this.host(spec.nodeName ?? '');
    return await MachineOnHost.find(host.dataDirectory, metadata.uid ?? '');
  }
}

/** The process, folder and record of one machine on a host. */
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

  /** Expects that the process and the folder no longer exist. Waits for the end of the record, which the agent removes afterwards. */
  async expectGone(): Promise<void> {
    expect(await isAlive(this.process)).toBe(false);
    expect(existsSync(this.folder)).toBe(false);
    await waitFor(`record ${this.#record} to be gone`, () => !existsSync(this.#record));
  }

  /** Resolves when the process, folder and record no longer exist. */
  async waitUntilGone(): Promise<void> {
    await waitFor(
      `all of machine ${this.folder} to be gone`,
      async () => !(await isAlive(this.process)) && !existsSync(this.folder) && !existsSync(this.#record),
      STEP,
    );
  }
}

/**
 * Returns the pids of QEMU processes whose working folder is below `folder`. The kernel's list of processes is read, not a record
 * of the agent. It is read without other work in between, which takes the tenth part of the processor's time.
 */
export async function hypervisorsBelow(folder: string): Promise<number[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  return pids.filter((pid) => isHypervisorBelow(pid, folder)).map(Number);
}

function isHypervisorBelow(pid: string, folder: string): boolean {
  try {
    // A starter of a hypervisor has the hypervisor's name in its parameters, and is two processes for a moment.
    const [program = ''] = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
    return program.includes('qemu-system-') && readlinkSync(`/proc/${pid}/cwd`).startsWith(`${folder}/`);
  } catch (error) {
    if (isMissing(error) || codeOf(error) === 'ESRCH') {
      return false;
    }
    throw error;
  }
}
