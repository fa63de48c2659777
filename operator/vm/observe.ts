/** Looks at the caches for one VM, and at the server itself where acting on a lagging cache could not be undone. */
import { randomBytes } from 'node:crypto';
import { VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMConfig } from '../../api/v1alpha1/vmconfig.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Namespace, type Node, NODES, type Pod, PODS } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf, refOf } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { isHost } from '../host/observe.ts';
import { PODS_BY_PORT } from './podstate.ts';

/** Enough for a UUID, a MAC address and a serial number. */
const ENTROPY_BYTES = 32;

/** A guest's processors and memory, without the overhead of its hypervisor. */
export interface Size {
  readonly cpu: number;
  readonly memoryBytes: bigint;
}

/** The API server did not let the Pod have another size. */
export interface ResizeRefusal {
  readonly wanted: Size;
  /** The server's own words. */
  readonly message: string;
  /** How often in a row. */
  readonly attempts: number;
  /** When it is asked again, in milliseconds since the epoch. */
  readonly retryAt: number;
}

/** All that one look at the world says about a VM. Every step and the status are pure functions of this and the clock in it. */
export interface Observed {
  readonly vm: VM;
  /** The Pod of the VM's name that carries the VM's uid, whatever its owner reference says (an orphaned Pod has lost it). */
  readonly pod: Pod | undefined;
  /** Somebody else's Pod has the name: `namespace/name` of its owner, in words. */
  readonly nameTakenBy: string | undefined;
  /** The Node that the Pod is bound to; undefined when it is gone or the Pod is not bound. */
  readonly node: Node | undefined;
  /** The API server's last no to another size of the Pod, as long as it is not taken back. */
  readonly resizeRefused: ResizeRefusal | undefined;
  /** The objects that `spec.configRef`, `image` and `iso` name. */
  readonly lookups: Lookups;
  /** Holders of host ports in use elsewhere, for the message to a VM that waits for one: `8822/TCP` → `namespace/name`. */
  readonly portHolder: (port: string) => string | undefined;
  /** All Berth hosts. */
  readonly hosts: () => readonly Node[];
  readonly config: OperatorConfig;
  /** Milliseconds since the epoch. */
  readonly now: number;
  /** The uid of the namespace `kube-system`, which every cluster has from its first minute to its last. */
  readonly clusterUid: string;
  /** Random bytes as hex, for `hardwareIdentity: Dynamic`. */
  readonly random: () => string;
}

export interface Lookups {
  vmConfig(name: string, namespace: string): VMConfig | undefined;
  /** In the VM's namespace, then in the default one. */
  image(name: string): Image | undefined;
  iso(name: string): ISO | undefined;
}

export interface Sources {
  readonly client: KubeClient;
  readonly vms: Informer<VM>;
  readonly pods: Informer<Pod>;
  readonly nodes: Informer<Node>;
  readonly vmConfigs: Informer<VMConfig>;
  readonly images: Informer<Image>;
  readonly isos: Informer<ISO>;
  readonly namespaces: Informer<Namespace>;
  readonly config: OperatorConfig;
  readonly clock: () => number;
}

const CLUSTER_NAMESPACE = 'kube-system';

export async function observe(sources: Sources, vm: VM): Promise<Observed> {
  const named = sources.pods.cache.get(keyOf(vm));
  const isOurs = named?.metadata.labels?.[VM_UID_LABEL] === vm.metadata.uid;
  const pod = isOurs ? named : await podThatMustExist(sources, vm);
  return {
    vm,
    pod,
    nameTakenBy:
      named === undefined || isOurs
        ? undefined
        : 'the Pod of a deleted VM of the same name, which is still ending',
    node: await nodeOf(sources, pod),
    resizeRefused: undefined,
    lookups: lookups(sources, vm.metadata.namespace ?? ''),
    portHolder: (port) => sources.pods.cache.byIndex(PODS_BY_PORT, port).filter(isBound).map(keyOf)[0],
    hosts: () => sources.nodes.cache.list().filter(isHost),
    config: sources.config,
    now: sources.clock(),
    clusterUid: clusterUid(sources),
    random: () => randomBytes(ENTROPY_BYTES).toString('hex'),
  };
}

/** @throws Error where it is not known, rather than give machines an identity that another cluster could have too. */
function clusterUid({ namespaces }: Sources): string {
  const uid = namespaces.cache.get(CLUSTER_NAMESPACE)?.metadata.uid;
  if (uid === undefined) {
    throw new Error(`namespace ${CLUSTER_NAMESPACE} is not known: its uid tells this cluster from others`);
  }
  return uid;
}

function isBound(pod: Pod): boolean {
  return pod.spec.nodeName !== undefined && pod.status?.phase !== 'Failed';
}

/** The loss of a Pod is recorded for good once its VM ran, so the server itself is asked first. */
async function podThatMustExist({ client }: Sources, vm: VM): Promise<Pod | undefined> {
  if (vm.status?.firstRunningTime === undefined || vm.status.failure !== undefined) {
    return undefined;
  }
  const pod = await unlessMissing(client.get(PODS, refOf(keyOf(vm))));
  return pod?.metadata.labels?.[VM_UID_LABEL] === vm.metadata.uid ? pod : undefined;
}

/** A missing Node gives its VMs up, so the server itself is asked first. */
export async function nodeOf(
  { client, nodes }: Pick<Sources, 'client' | 'nodes'>,
  pod: Pod | undefined,
): Promise<Node | undefined> {
  const name = pod?.spec.nodeName;
  return name === undefined
    ? undefined
    : (nodes.cache.get(name) ?? (await unlessMissing(client.get(NODES, { name }))));
}

function lookups(sources: Sources, namespace: string): Lookups {
  const fallback = sources.config.namespaces.default;
  return {
    vmConfig: (name, from) => sources.vmConfigs.cache.get(`${from}/${name}`),
    image: (name) =>
      sources.images.cache.get(`${namespace}/${name}`) ?? sources.images.cache.get(`${fallback}/${name}`),
    iso: (name) =>
      sources.isos.cache.get(`${namespace}/${name}`) ?? sources.isos.cache.get(`${fallback}/${name}`),
  };
}
