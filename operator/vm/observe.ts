/**
 * Reads all that one reconcile of a VM needs. Most data comes from the caches. Data for an action that cannot be undone comes directly from
 * the API server, because a cache can lag.
 */
import { randomBytes } from 'node:crypto';
import { VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { RegistryCredentials } from '../../api/v1alpha1/registrycredentials.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMConfig } from '../../api/v1alpha1/vmconfig.ts';
import { type Namespace, type Node, type Pod, PODS } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf, refOf, type Unsaved } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import type { Adoptions } from '../host/adoptions.ts';
import { startDeadline } from '../host/power.ts';
import { onlyOwnHosts, isHost } from '../tasks/placement.ts';
import { podPorts, PODS_BY_PORT } from '../podbacked/pod.ts';
import { type HostSources, type PodObserved, reachOf } from '../podbacked/observe.ts';
import type { VMSnapshot } from '../../api/v1alpha1/vmsnapshot.ts';
import { SNAPSHOTS_BY_VM } from './snapshots.ts';

/** Number of random bytes for a hardware identity. They are enough for a UUID, a MAC address and a serial number. */
const ENTROPY_BYTES = 32;

/** Processors and memory of a guest, without the overhead of its hypervisor. */
export interface Size {
  readonly cpu: number;
  readonly memoryBytes: bigint;
}

/** The last refusal of the API server to give the Pod another size. */
export interface ResizeRefusal {
  readonly wanted: Size;
  /** Message of the API server. */
  readonly message: string;
  /** Number of consecutive refusals of this size. */
  readonly attempts: number;
  /** Time of the next request for this size, in milliseconds since the epoch. */
  readonly retryAt: number;
}

/** The state that one reconcile of a VM observes. Every step and the status are pure functions of this state and the time in it. */
export interface ObservedVM extends PodObserved {
  readonly vm: VM;
  /** Pod with the VM's name and uid. The owner reference is not checked, because an orphaned Pod has no owner reference. */
  readonly pod: Pod | undefined;
  /** Description of the Pod that has the VM's name but does not belong to the VM. It is undefined if there is no such Pod. */
  readonly nameTakenBy: string | undefined;
  /**
   * Pod that must continue the machine, because somebody deleted the Pod of the VM by force. It is set only while the VM has no Pod, and
   * `node` is then the Node to which this Pod will be bound.
   */
  readonly successor: Unsaved<Pod> | undefined;
  /** Last refused resize of the Pod. It is undefined if no resize was refused, or if the VM no longer requests the refused size. */
  readonly resizeRefused: ResizeRefusal | undefined;
  /** Snapshots that name the VM, also those of an earlier VM of the same name. */
  readonly snapshots: readonly Readonly<VMSnapshot>[];
  /** Lookups of the objects that `spec.configRef`, `image` and `iso` name. */
  readonly lookups: Lookups;
  /**
   * Returns a description of the VM that holds a host port, for the message of another VM that waits for this port. `port` has the form
   * `8822/TCP`.
   */
  readonly portHolder: (port: string) => string | undefined;
  /** Returns whether the VMs of the namespace run on its own hosts only. */
  readonly isDedicated: () => boolean;
  /** Returns the Nodes of the hosts that somebody has switched on, and that have not reported yet. */
  readonly startingHosts: () => readonly Node[];
  /** Uid of the namespace `kube-system`. It identifies the cluster, because every cluster has this namespace for its whole life. */
  readonly clusterUid: string;
  /** Returns random bytes as hex digits, for `hardwareIdentity: Dynamic`. */
  readonly random: () => string;
}

export interface Lookups {
  vmConfig(name: string, namespace: string): VMConfig | undefined;
  /** Returns the Image from the VM's namespace, or else from the default namespace. `iso` searches in the same order. */
  image(name: string): Image | undefined;
  iso(name: string): ISO | undefined;
  /** Credentials of the VM's namespace for registries. They are not in a cache. They are undefined until `readLive` has read them. */
  credentials(): RegistryCredentials | undefined;
}

export interface VMSources extends HostSources {
  readonly vms: Informer<VM>;
  readonly pods: Informer<Pod>;
  readonly vmConfigs: Informer<VMConfig>;
  readonly images: Informer<Image>;
  readonly isos: Informer<ISO>;
  readonly snapshots: Informer<VMSnapshot>;
  readonly namespaces: Informer<Namespace>;
  readonly adoptions: Adoptions;
  readonly config: OperatorConfig;
}

const CLUSTER_NAMESPACE = 'kube-system';

export async function observe(sources: VMSources, vm: VM): Promise<ObservedVM> {
  const named = sources.pods.cache.get(keyOf(vm));
  const isOurs = named?.metadata.labels?.[VM_UID_LABEL] === vm.metadata.uid;
  const held = isOurs ? { pod: named, successor: undefined } : await podThatMustExist(sources, vm);
  return {
    ...(await reachOf(sources, (held.pod ?? held.successor)?.spec.nodeName)),
    ...held,
    vm,
    nameTakenBy:
      named === undefined || isOurs
        ? undefined
        : 'the Pod of a deleted VM of the same name. That Pod has not ended yet',
    resizeRefused: undefined,
    snapshots: sources.snapshots.cache.byIndex(SNAPSHOTS_BY_VM, keyOf(vm)),
    lookups: lookups(sources, vm.metadata.namespace ?? ''),
    portHolder: (port) => describeHolder(sources.pods.cache.byIndex(PODS_BY_PORT, port).find(isBound), vm),
    hosts: () => sources.nodes.cache.list().filter(isHost),
    isDedicated: () => onlyOwnHosts(sources, vm.metadata.namespace ?? ''),
    startingHosts: () => startingHosts(sources),
    config: sources.config,
    now: sources.clock(),
    clusterUid: clusterUid(sources),
    random: () => randomBytes(ENTROPY_BYTES).toString('hex'),
  };
}

function startingHosts({ servers, nodes, config, clock }: VMSources): Node[] {
  const found = servers.cache.list().map((server) => {
    const node = nodes.cache.get(server.spec.nodeName ?? '');
    const until = node && startDeadline(server, node, config.powerByDemand.bootSeconds);
    return until === undefined || clock() >= until ? undefined : node;
  });
  return found.filter((node) => node !== undefined);
}

/**
 * Returns the uid of this cluster. Without the uid, machines could get the same identity as machines of another cluster.
 * @throws Error when the uid is not known
 */
function clusterUid({ namespaces }: VMSources): string {
  const uid = namespaces.cache.get(CLUSTER_NAMESPACE)?.metadata.uid;
  if (uid === undefined) {
    throw new Error(
      `namespace ${CLUSTER_NAMESPACE} is not known. Its uid is needed to identify this cluster`,
    );
  }
  return uid;
}

/**
 * Describes the VM that holds a port, for the users of `vm`. The text does not name a VM of another namespace, because these users are not
 * allowed to see it.
 */
function describeHolder(holder: Pod | undefined, vm: VM): string | undefined {
  if (holder === undefined) {
    return undefined;
  }
  const { namespace, name } = holder.metadata;
  return namespace === vm.metadata.namespace ? `VM ${name}` : 'a VM of another namespace';
}

/** Index of the Pods that wait for a host, by the host ports that they request. */
export const PODS_BY_AWAITED_PORT = 'awaitedPort';

/** Returns the keys of a Pod for the index {@link PODS_BY_AWAITED_PORT}. In a large fleet, thousands of bound Pods have the same port. */
export function awaitedPorts(pod: Pod): string[] {
  return isBound(pod) ? [] : podPorts(pod);
}

/**
 * Returns the Pods that wait for a host and request one of this Pod's host ports. The messages of their VMs name the holder of the port.
 * Therefore these VMs must be reconciled when this Pod changes.
 */
export function waitingForPortsOf(pod: Pod, pods: Pick<Informer<Pod>['cache'], 'byIndex'>): Pod[] {
  return podPorts(pod).flatMap((port) => pods.byIndex(PODS_BY_AWAITED_PORT, port));
}

export function isBound(pod: Pod): boolean {
  return pod.spec.nodeName !== undefined && pod.status?.phase !== 'Failed';
}

/**
 * If a VM has already run, reads its Pod from the API server, because the cache can lag. Without this read, the operator could permanently
 * record the loss of a Pod that exists. If there is no Pod, reads the Pod that must continue the machine.
 */
async function podThatMustExist(sources: VMSources, vm: VM): Promise<Pick<ObservedVM, 'pod' | 'successor'>> {
  const { firstRunningTime, failure } = vm.status ?? {};
  if (firstRunningTime === undefined || failure !== undefined) {
    return { pod: undefined, successor: undefined };
  }
  const pod = await readPod(sources, vm);
  const isContinued = pod === undefined && vm.metadata.deletionTimestamp === undefined;
  return { pod, successor: isContinued ? await sources.adoptions.of(vm) : undefined };
}

async function readPod({ client }: VMSources, vm: VM): Promise<Pod | undefined> {
  const pod = await unlessMissing(client.get(PODS, refOf(keyOf(vm))));
  return pod?.metadata.labels?.[VM_UID_LABEL] === vm.metadata.uid ? pod : undefined;
}

/** Returns the lookups of a namespace in the caches. */
export function lookups(
  { vmConfigs, images, isos, config }: Pick<VMSources, 'vmConfigs' | 'images' | 'isos' | 'config'>,
  namespace: string,
): Lookups {
  const fallback = config.namespaces.default;
  return {
    vmConfig: (name, from) => vmConfigs.cache.get(`${from}/${name}`),
    image: (name) => images.cache.get(`${namespace}/${name}`) ?? images.cache.get(`${fallback}/${name}`),
    iso: (name) => isos.cache.get(`${namespace}/${name}`) ?? isos.cache.get(`${fallback}/${name}`),
    credentials: () => undefined,
  };
}
