/** Assembles the agent: drivers, images, identity, network, kubelet endpoints, Node, Pods, Lease and certificates. */
import { join } from 'node:path';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { awaitedOn } from '../api/v1alpha1/machine.ts';
import { AGENT_NAME, MACOS_GUEST_RESOURCE, SLOT_RESOURCE } from '../api/v1alpha1/names.ts';
import type { SaidReason } from '../api/v1alpha1/reasons.ts';
import { keepReserve } from '../base/files.ts';
import { Proxies } from '../base/proxy.ts';
import { KubeClient } from '../kube/client.ts';
import { EventRecorder } from '../kube/events.ts';
import { createMetrics } from '../kube/metrics.ts';
import { Authorizer } from '../kube/serving/authorization.ts';
import { Transport } from '../kube/transport.ts';
import { type AgentConfig, machineDriver, portRules } from './config.ts';
import { folderBytes } from './disks/diskio.ts';
import { freeDisk } from './disks/freedisk.ts';
import type { DriverOfVMs } from './drivers/driver.ts';
import { EmulatorDriver } from './drivers/emulator/driver.ts';
import type { DriverOfEmulators } from './drivers/hostdrivers.ts';
import { QemuDriver, type QemuDriverOptions } from './drivers/qemu/driver.ts';
import { homeOf, TartDriver } from './drivers/tart/driver.ts';
import { bundleOf } from './drivers/tart/files.ts';
import { fitDrivers, runtimeVersion } from './fitness.ts';
import { servingCertificate } from './identity/certificates.ts';
import { joinAgain, takeIdentity } from './identity/identity.ts';
import { keepCertificates } from './identity/rotation.ts';
import { Publisher } from './images/publisher.ts';
import { HostImageStore, type ImageStore } from './images/store.ts';
import { ResourceMetrics } from './kubelet/resources.ts';
import { KubeletServer } from './kubelet/server.ts';
import { machineAccess, podsIn } from './kubelet/targets.ts';
import { NetworkMonitor } from './network/monitor.ts';
import type { Network, NetworkReport } from './network/network.ts';
import { createNetwork, type NetworkSurroundings } from './networkdriver.ts';
import { EmulatorOffers } from './node/emulators.ts';
import { hostFacts, nativeArchitecture } from './node/facts.ts';
import { NodeKeeper, NodeLease } from './node/keeper.ts';
import { allocatable } from './node/node.ts';
import { PodController } from './pods/controller.ts';
import { DiskGuard } from './pods/diskguard.ts';
import { machineOf, type PodHost } from './pods/host.ts';
import { followNetwork } from './pods/network.ts';
import { RecordStore } from './pods/records.ts';
import { adoptMachines } from './pods/recover.ts';
import {
  pullKeyring,
  readUserData,
  readVncPassword,
  skippedSecrets,
  storageKeyring,
} from './pods/secrets.ts';
import { SnapshotShares } from './pods/snapshotshares.ts';
import { hostFile, ownRoot } from './processes/ownroot.ts';
import { hypervisorUsers, type MachineUsers, machineUsers } from './processes/users.ts';
import { seedPages } from './seed/seed.ts';
import { TaskRunner } from './tasks/runner.ts';
import { taskWork } from './tasks/work.ts';

/**
 * Time limit for sending the last Events. These Events give the reasons why machines ended. The limit is short, because a kubelet allows
 * the agent's Pod only 30 s to end.
 */
const LAST_EVENTS_MILLISECONDS = 5_000;

/** The parts that run machines on this host. */
export interface HostParts {
  /** Drivers of VMs in the order of preference. */
  drivers: readonly DriverOfVMs[];
  /** Driver of emulators. The driver exists even on hosts that offer no emulators, because it removes the machines of old emulators. */
  emulators: DriverOfEmulators;
  images: ImageStore;
  publisher: Publisher;
  network: Network;
  /** Linux users of hypervisors: each hypervisor runs as the user of its machine. Undefined if the agent does not run as root. */
  users?: MachineUsers | undefined;
  /** Records of the machines on this host. */
  records: RecordStore;
  /** Registry of the metrics of the agent and of all its parts. */
  metrics: Registry;
}

interface Work {
  keeper: Pick<NodeKeeper, 'start'>;
  pods: Pick<PodController, 'start'>;
  kubelet: Pick<KubeletServer, 'hasJoined'>;
}

/** Runs the agent until the signal aborts. Machines continue to run afterwards. */
export async function runAgent(
  config: AgentConfig,
  parts: HostParts,
  logger: Logger,
  signal: AbortSignal,
): Promise<void> {
  const { metrics } = parts;
  const drivers = await fitDrivers(config, parts.drivers, logger);
  const offers = new EmulatorOffers(config, parts);
  const identity = await takeIdentity({ config, logger, metrics, signal });
  const transport = new Transport(identity.connection, { metrics, userAgent: AGENT_NAME });
  const client = new KubeClient(transport);
  const facts = await hostFacts(config, runtimeVersion(drivers));
  const monitor = new NetworkMonitor({
    network: parts.network,
    intervalMilliseconds: config.network.checkIntervalSeconds * 1000,
    logger,
    metrics,
  });
  const recorder = new EventRecorder<SaidReason>(client, {
    reportingController: 'berth.dev/agent',
    reportingInstance: config.nodeName,
    logger,
  });
  const guard = new DiskGuard({
    minimumFree: config.images.minimumFree,
    freeBytes: async () => (await freeDisk(config.dataDirectory)).bytes,
    sizeOf: (uid) => machineBytes(config.dataDirectory, uid),
    machines: () => pods.machines.guarded(),
    relieve: () => parts.images.relieve(),
    replenish: () => keepReserve(config.dataDirectory),
    changed: (uid) => pods.touch(uid),
    logger,
  });
  const host: PodHost = {
    ...parts,
    drivers,
    architecture: facts.architecture,
    disk: guard,
    snapshotShares: new SnapshotShares(),
    namespace: config.namespace,
    monitor,
    address: config.address,
    forwardAddress: forwardAddress(config),
    ports: config.ports,
    boundPods: () => pods.informer.cache.list(),
    machinesDirectory: join(config.dataDirectory, 'machines'),
    logger,
    capacity: () => ({
      ...allocatable(config, facts, parts.images.heldBytes()),
      slots: offered(keeper, SLOT_RESOURCE),
      macosGuests: offered(keeper, MACOS_GUEST_RESOURCE),
    }),
    isAwaited: ({ machine }) => awaitedOn(keeper.node)[machine?.vm.uid ?? ''] !== undefined,
    fenced: () => lease.fenced,
    event: (regarding, text) => recorder.event(regarding, text),
    keyring: async (pod) => {
      const keyring = await pullKeyring(client, pod);
      const skipped = skippedSecrets(keyring);
      if (skipped !== undefined) {
        recorder.event(pod, skipped);
      }
      return keyring;
    },
    userData: (ref) => readUserData(client, ref),
    vncPassword: (vm) => readVncPassword(client, vm),
  };
  const tasks = new TaskRunner({
    directory: join(config.dataDirectory, 'tasks'),
    atOnce: config.tasksAtOnce,
    work: taskWork({
      ...host,
      publisher: parts.publisher,
      storageKeyring: (pod, otherNamespace) =>
        // A host of one namespace may not read the credentials of another one.
        storageKeyring(client, pod, config.namespace === undefined ? otherNamespace : undefined),
      machineOf: (vmUid) => machineOf(host, vmUid),
    }),
    logger,
    changed: (key) => pods.touchPod(key),
  });
  const pods = new PodController({ client, scope: config, host, tasks, logger, metrics });
  const kubelet = new KubeletServer({
    listenAddress: config.kubelet.listenAddress ?? config.address,
    port: config.kubelet.port,
    clientCAFile: config.kubelet.clientCAFile,
    certificate: await servingCertificate(config),
    nodeName: config.nodeName,
    authorizer: new Authorizer(client),
    ...machineAccess({
      host,
      machines: pods.machines,
      tasks,
      podOf: podsIn(pods.informer),
    }),
    unready: () => (lease.fenced ? 'This host is cut off from the cluster' : undefined),
    metrics,
    resources: new ResourceMetrics({ host, machines: pods.machines, logger }),
    logger,
  });
  const keeper = new NodeKeeper({
    client,
    config,
    facts,
    state: {
      kubeletPort: await kubelet.listen(),
      images: parts.images.images(),
      nat: undefined,
      diskPressure: false,
      emulators: await offers.ask(),
      heldImageBytes: parts.images.heldBytes(),
    },
    heldImageBytes: () => parts.images.heldBytes(),
    metrics,
    logger,
  });
  const lease = new NodeLease({
    client,
    nodeName: config.nodeName,
    node: () => keeper.node,
    fenceAfterMilliseconds: config.fenceAfterSeconds * 1000,
    isUpToDate: (ended) => pods.isUpToDate(ended),
    onFenced: (fenced) => {
      logger.warn(
        fenced ? 'This host is cut off from the cluster' : 'This host is connected to the cluster again',
      );
      pods.touchAll();
    },
    logger,
  });
  monitor.onReport = (report) => {
    tellNode(host, keeper, report);
    followNetwork(host, pods, report);
  };
  parts.images.onChange(() => keeper.update({ images: parts.images.images() }));
  await takeOver(host, pods, signal);
  const running = [
    monitor.run(signal),
    lease.run(signal),
    guard.run(signal),
    offers.run(signal, (emulators) => keeper.update({ emulators })),
  ];
  const taken = takeUpWork({ keeper, pods, kubelet }, signal);
  running.push(
    ...keepCertificates({
      config,
      client,
      isNode: identity.isNode,
      join: () => joinAgain({ config, logger, metrics, signal }),
      nodeKnown: taken,
      transport,
      server: kubelet,
      metrics,
      logger,
      signal,
    }),
  );
  await Promise.all([taken, ...running]);
  await drainAndClose([keeper, pods], recorder, [
    kubelet,
    parts.network,
    ...parts.drivers,
    parts.emulators,
    transport,
  ]);
}

/**
 * Sets up the network, and takes over the machines that continued to run during a restart of the agent. After that, the image store knows
 * which images these machines use, so it begins to remove other images.
 */
async function takeOver(host: PodHost, { machines }: PodController, signal: AbortSignal): Promise<void> {
  await host.network.setUp();
  await adoptMachines(host, machines);
  host.images.startTidying(signal);
}

/**
 * Starts the work for the Node and for the Pods. Without an API server, the start of the Node's keeper never ends. So the Pods' controller
 * starts at the same time, because it ends machines when the host is cut off.
 */
export async function takeUpWork({ keeper, pods, kubelet }: Work, signal: AbortSignal): Promise<void> {
  await pods.start(signal, keeper.start(signal));
  kubelet.hasJoined = true;
}

/**
 * Writes the result of a network check to the Node. With the network drivers `user` and `vmnet`, the Node has no condition for the network,
 * because these drivers set up nothing for the host as a whole.
 */
function tellNode(host: PodHost, keeper: NodeKeeper, { repaired, obstacle }: NetworkReport): void {
  const { network, monitor } = host;
  const isOfHost = network.name === 'nat' || network.name === 'softnet';
  if (!isOfHost || monitor.host === undefined) {
    return;
  }
  keeper.update({ nat: obstacle === undefined ? monitor.host : { healthy: false, message: obstacle } });
  if (keeper.node !== undefined && repaired.length > 0) {
    const message = repaired.join('; ');
    host.event(keeper.node, { type: 'Warning', reason: 'NetworkRepaired', action: 'RepairNetwork', message });
  }
}

/**
 * Waits until the last changes are stored in the cluster, then sends the last Events, and then closes all parts. The Events come after the
 * changes, because Events report on the changes.
 */
async function drainAndClose(
  busy: readonly { drained: () => Promise<unknown> }[],
  recorder: EventRecorder<SaidReason>,
  open: readonly { close: () => Promise<unknown> }[],
): Promise<void> {
  await Promise.all(busy.map((one) => one.drained()));
  await recorder.flush(LAST_EVENTS_MILLISECONDS);
  await Promise.all(open.map((one) => one.close()));
}

/** Returns the amount of a resource that the operator has written to the Node. Undefined as long as it has written none. */
function offered(keeper: NodeKeeper, resource: string): number | undefined {
  const amount = keeper.node?.status?.allocatable?.[resource];
  return amount === undefined ? undefined : Number(amount);
}

function forwardAddress(config: AgentConfig): string {
  const { hostAddress } = config.network;
  return hostAddress === undefined || hostAddress === '0.0.0.0' ? config.address : hostAddress;
}

/** Creates the agent's parts that run machines on this host. The configuration determines these parts. */
export async function createParts(config: AgentConfig, logger: Logger): Promise<HostParts> {
  const { dataDirectory, architecture } = config;
  const metrics = createMetrics();
  const records = new RecordStore(join(dataDirectory, 'pods'));
  const users = await machineUsers(config.machines.users, records.list(), logger);
  const proxies = new Proxies(process.env);
  if (proxies.describe().length > 0) {
    logger.info(
      { proxies: proxies.describe() },
      'Registries and web servers of images are reached through a proxy',
    );
  }
  const images = await HostImageStore.open({
    dataDirectory,
    architecture: architecture ?? nativeArchitecture(),
    ...config.images,
    proxies,
    clusterCIDRs: config.clusterCIDRs,
    ownAddresses: [config.address],
    reader: users?.reader,
    metrics,
    logger: logger.child({ part: 'images' }),
  });
  const machineRoot = await ownRoot({ dataDirectory, logger });
  const publisher = new Publisher({
    registries: images.registries,
    storageFolder: config.images.storageFolder,
  });
  // The start does not wait for this folder, because its file server can be down. Each write to the folder protects the folder again.
  publisher.protectFolder().catch((error: unknown) => {
    logger.error({ err: error }, 'The mode of the folder of the image storage could not be set');
  });
  const parts = { dataDirectory, architecture, readers: users?.reader.gid, ownRoot: machineRoot };
  const driver = createDriver(config, parts, logger);
  return {
    metrics,
    users,
    records,
    drivers: [driver],
    emulators: new EmulatorDriver({
      dataDirectory,
      sdk: config.emulator?.sdk,
      program: config.emulator?.program,
      architecture,
      logger: logger.child({ part: 'emulator' }),
      ownRoot: machineRoot,
    }),
    images,
    publisher,
    network: createNetwork(config.network, {
      dataDirectory,
      nodeAddress: config.address,
      ports: portRules(config),
      clusterCIDRs: config.clusterCIDRs,
      metadata: seedPages(join(dataDirectory, 'machines')),
      tart: tartGuests(driver, config.machines.tart),
      machineUsers:
        process.getuid?.() === 0 ? hypervisorUsers(config.machines.users, records.list()) : undefined,
      resolvConf: machineRoot === undefined ? undefined : await hostFile('/etc/resolv.conf'),
      logger: logger.child({ part: 'network' }),
    }),
  };
}

/** Creates the driver of VMs that the configuration names. A host has one, because two would not know of each other's machines. */
function createDriver(
  { machines, images: { minimumFree } }: AgentConfig,
  options: Omit<QemuDriverOptions, 'logger'>,
  logger: Logger,
): QemuDriver | TartDriver {
  const part = machineDriver(machines);
  const own = { ...options, logger: logger.child({ part }) };
  const { tart: program, screens } = machines;
  return part === 'tart'
    ? new TartDriver({ ...own, program, screens })
    : new QemuDriver({ ...own, minimumFree });
}

/** Returns what only the driver of the machines knows about guests, if this driver is `tart`. `program` is the path of that program. */
function tartGuests(driver: QemuDriver | TartDriver, program: string): NetworkSurroundings['tart'] {
  if (!(driver instanceof TartDriver)) {
    return undefined;
  }
  const guests = {
    address: async (uid: string) => await driver.address(uid),
    filter: async (uid: string) => await driver.filter(uid),
  };
  return { guests, program };
}

/** Returns the size of all files of a machine in bytes. The driver tart has the disks of machines in a folder of its own. */
async function machineBytes(dataDirectory: string, uid: string): Promise<number> {
  const folders = [join(dataDirectory, 'machines', uid), bundleOf(homeOf(dataDirectory), uid)];
  const sizes = await Promise.all(folders.map(async (folder) => await folderBytes(folder)));
  return sizes.reduce((sum, bytes) => sum + bytes, 0);
}
