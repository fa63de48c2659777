/**
 * Hosts with emulators beside their VMs: a control plane, an operator, and one agent per host. Each host has the `nat` network in a network
 * namespace. Clients of ADB connect from a second namespace. The emulator is the stand-in of test/standins/emulator, whose guest has the
 * real adbd.
 */
import { readFileSync } from 'node:fs';
import { copyFile, readdir, readFile, rm } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { run } from '../../base/exec.ts';
import { isMissing, isOfSystem, undefinedIf, undefinedIfSync } from '../../base/errors.ts';
import type { MachineRecord } from '../../agent/pods/machine.ts';
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import { SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import { AgentProcess, endMachines } from '../../hack/cluster/agent.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { Relay } from '../../hack/cluster/relay.ts';
import type { GuestArchitecture } from '../../hack/guest.ts';
import { waitFor, type WaitOptions } from '../../hack/wait.ts';
import { NODES } from '../../kube/core.ts';
import { EMULATORS } from '../../api/v1alpha1/resources.ts';
import { createImage, guestFile, shareGuest } from '../fixtures/images.ts';
import { waitForObject } from '../fixtures/objects.ts';
import { makeSdk, makeSdkFolder } from '../standins/emulator/sdk.ts';
import { HOST_ADDRESS, NatWorld, type Worker, WORLD_ADDRESS } from './nat.ts';
import { hypervisorsBelow } from './vm.ts';

export const NAMESPACE = 'platform-default';
/** Overcommit that lets guests of VMs and emulators run on a machine with two processors. */
const CPU_OVERCOMMIT = 16;
const OPERATOR_CONFIG = { emulators: { architectures: ['amd64', 'arm64'] } };
const FIND = { timeoutMilliseconds: 60_000 };

/** One host and its network namespaces. */
export class EmulatorHost {
  readonly name: string;
  readonly net: NatWorld;
  readonly agent: AgentProcess;
  readonly outside: Worker;
  /** Folder of the SDK. */
  readonly #sdk: string;

  constructor(net: NatWorld, agent: AgentProcess, sdk: string) {
    this.#sdk = sdk;
    this.name = agent.nodeName;
    this.net = net;
    this.agent = agent;
    this.outside = net.worker('world');
  }

  /** Returns a page of a guest's web server, which is at a port of the host. */
  async page(port: number, path: string, milliseconds: number): Promise<string> {
    return await this.outside.do('httpGet', `http://${HOST_ADDRESS}:${port}${path}`, milliseconds);
  }

  /** Returns everything on the host that exists for machines, as texts that are equal if nothing was left over. */
  async traces(): Promise<Record<string, string[]>> {
    const data = this.agent.dataDirectory;
    const links = JSON.parse(this.net.inHost('ip', '-json', 'link', 'show')) as { ifname: string }[];
    const attachments = JSON.parse(
      await readFile(join(data, 'network', 'attachments.json'), 'utf8'),
    ) as object;
    return {
      links: links.map(({ ifname }) => ifname).toSorted(),
      rules: this.net.inHost('nft', '--stateless', 'list', 'ruleset').split('\n'),
      routes: this.net.inHost('ip', 'route').trim().split('\n'),
      namespaces: await this.namespaces(),
      attachments: [JSON.stringify(attachments)],
      folders: (await Promise.all(['machines', 'pods'].map((name) => entriesOf(join(data, name))))).flat(),
      processes: (await this.processes()).map(String),
    };
  }

  /** Returns the process ids of the host's emulators and hypervisors. All of an emulator's processes have a path of the SDK in their arguments. */
  async processes(): Promise<number[]> {
    const pids = await processesWith(`${this.#sdk}/`);
    return [...pids, ...(await hypervisorsBelow(join(this.agent.dataDirectory, 'machines')))];
  }

  /** Returns the number of VMs and emulators with a program that runs. An emulator has several processes. */
  async machines(): Promise<number> {
    const programs = await allPrograms();
    const ofEmulators = [...programs].filter(([, program]) => program.includes(`${this.#sdk}/`));
    const emulators = new Set(
      ofEmulators.flatMap(([, program]) => /\0-id\0([^\0]+)/.exec(program)?.[1] ?? []),
    );
    const hypervisors = await hypervisorsBelow(join(this.agent.dataDirectory, 'machines'));
    // Machines come and go while the processes are read. Only those count that all existed at the same moment.
    const together = hypervisors.filter((pid) => programs.has(pid));
    const ofVMs = together.filter((pid) => ofEmulators.every(([one]) => one !== pid));
    return emulators.size + ofVMs.length;
  }

  /**
   * Returns the record that the host's agent has of a Pod's machine. The key is `NAMESPACE/NAME`. The result is undefined if there is no
   * record.
   */
  async record(key: string): Promise<MachineRecord | undefined> {
    const folder = join(this.agent.dataDirectory, 'pods');
    for (const name of await entriesOf(folder)) {
      const text = name.endsWith('.json') ? await readIfThere(join(folder, name)) : undefined;
      const record = text === undefined ? undefined : (JSON.parse(text) as MachineRecord);
      if (record?.key === key) {
        return record;
      }
    }
    return undefined;
  }

  /** Returns the mounted network namespaces of the host's agent. */
  async namespaces(): Promise<string[]> {
    const mounts = await readFile('/proc/self/mounts', 'utf8');
    return mounts
      .split('\n')
      .filter((line) => line.startsWith('nsfs ') && line.includes(this.agent.dataDirectory));
  }
}

export class EmulatorWorld implements AsyncDisposable {
  readonly cluster: Cluster;
  readonly hosts: Record<GuestArchitecture, EmulatorHost>;
  #operator: OperatorProcess;
  readonly #parts: AsyncDisposableStack;

  private constructor(
    { cluster, operator, hosts }: Pick<EmulatorWorld, 'cluster' | 'hosts'> & { operator: OperatorProcess },
    parts: AsyncDisposableStack,
  ) {
    this.cluster = cluster;
    this.#operator = operator;
    this.hosts = hosts;
    this.#parts = parts;
  }

  /** Starts a host of each architecture, with the Images `guest-amd64` and `guest-arm64`. */
  static async start(): Promise<EmulatorWorld> {
    await using parts = new AsyncDisposableStack();
    const cluster = parts.adopt(await startCluster({ name: `emulators-${process.pid}` }), (one) =>
      one.stop(),
    );
    const operator = await cluster.startOperator({ config: OPERATOR_CONFIG });
    const shared = await shareGuest(cluster, await guestFile('amd64'));
    await copyFile(await guestFile('arm64'), join(shared, 'guest-arm64.qcow2'));
    parts.defer(() => endMachines(cluster.directory));
    const [amd64, arm64] = await Promise.all([
      startHost({ cluster, shared, architecture: 'amd64', address: '127.0.0.1' }, parts),
      startHost({ cluster, shared, architecture: 'arm64', address: '127.0.0.2' }, parts),
    ]);
    await createImage(cluster, 'guest-amd64', { sharedFile: { path: 'guest.qcow2' } });
    await createImage(cluster, 'guest-arm64', { sharedFile: { path: 'guest-arm64.qcow2' } });
    return new EmulatorWorld({ cluster, operator, hosts: { amd64, arm64 } }, parts.move());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync();
  }

  /** Changes the number of slots of the amd64 host. For this, it starts an operator with another configuration. */
  async setSlots(slots: number): Promise<void> {
    await this.#operator.stop();
    const config = { ...OPERATOR_CONFIG, x86_node_platform_quota_pod: slots };
    this.#operator = await this.cluster.startOperator({ config });
    const { name } = this.hosts.amd64;
    await waitFor(`${slots} slots on host ${name}`, async () => {
      const { status } = await this.cluster.client().get(NODES, { name });
      return status?.allocatable?.[SLOT_RESOURCE] === String(slots);
    });
  }

  /** Returns the output of kubectl in the namespace of the VMs. */
  async kubectl(...args: string[]): Promise<string> {
    return (await this.cluster.kubectl(['-n', NAMESPACE, ...args])).stdout;
  }

  async emulator(name: string): Promise<Emulator> {
    return await this.cluster.client().get(EMULATORS, { namespace: NAMESPACE, name });
  }

  async waitForPhase(name: string, phase: string, options?: WaitOptions): Promise<Emulator> {
    return await waitForObject(
      `Emulator ${name} to be ${phase}`,
      async () => await this.emulator(name),
      ({ status }) => status?.phase === phase,
      options,
    );
  }
}

interface HostOptions {
  cluster: Cluster;
  /** Folder of the files that Images may name. */
  shared: string;
  architecture: GuestArchitecture;
  /** Loopback address of the agent's Node. No two Nodes have the same address. */
  address: string;
}

/** Returns the ids of all processes that have this text in their arguments, which a NUL separates. */
export async function processesWith(text: string): Promise<number[]> {
  return [...(await allPrograms())].flatMap(([pid, program]) => (program.includes(text) ? [pid] : []));
}

/** Returns the arguments of all processes by their ids. A NUL ends each argument. */
async function allPrograms(): Promise<Map<number, string>> {
  const programs = new Map<number, string>();
  for (const pid of (await readdir('/proc')).filter((name) => /^\d+$/.test(name))) {
    const program = undefinedIfSync(isOfSystem, () => readFileSync(`/proc/${pid}/cmdline`, 'utf8'));
    programs.set(Number(pid), program ?? '');
  }
  return programs;
}

/** Returns the folders of the machines' control groups. */
export async function controlGroups(uids: Iterable<string>): Promise<string[]> {
  const known = new Set(uids);
  // Machines of other tests come and go meanwhile.
  const parameters = ['/sys/fs/cgroup', '-ignore_readdir_race', '-path', '*/berth/*', '-type', 'd'];
  const all = await run('find', parameters, FIND);
  return all.split('\n').filter((path) => known.has(basename(path)));
}

async function readIfThere(path: string): Promise<string | undefined> {
  return await undefinedIf(isMissing, readFile(path, 'utf8'));
}

async function entriesOf(folder: string): Promise<string[]> {
  return (await undefinedIf(isMissing, readdir(folder))) ?? [];
}

async function startHost(
  { cluster, shared, architecture, address }: HostOptions,
  parts: AsyncDisposableStack,
): Promise<EmulatorHost> {
  const net = parts.use(await NatWorld.make(`emu${architecture.slice(0, 3)}`));
  const kubeletPort = await freePort();
  const ways = [
    ['in', Number(new URL(cluster.server).port)],
    ['out', kubeletPort],
  ] as const;
  for (const [direction, port] of ways) {
    const { host: namespace, directory } = net;
    parts.use(await Relay.open({ namespace, direction, port, addressHere: address, directory }));
  }
  const sdkFolder = await makeSdkFolder();
  parts.defer(() => rm(sdkFolder, { recursive: true, force: true }));
  const sdk = await makeSdk(sdkFolder, { architecture, mode: 'guest' });
  const started = await AgentProcess.start(cluster, {
    nodeName: `host-${architecture}`,
    networkNamespace: net.host,
    config: {
      architecture,
      address,
      cpuOvercommit: CPU_OVERCOMMIT,
      images: { sharedRoots: [shared] },
      network: { driver: 'nat', hostAddress: HOST_ADDRESS, dnsServers: [WORLD_ADDRESS] },
      kubelet: {
        port: kubeletPort,
        listenAddress: '127.0.0.1',
        clientCAFile: join(cluster.directory, 'pki', 'ca.crt'),
      },
      emulator: { sdk: sdk.root },
    },
  });
  const agent = parts.adopt(started, (one) => one.stop());
  return new EmulatorHost(net, agent, sdk.root);
}
