/** Looks at the caches, and at the server itself where acting on a lagging cache could not be undone. */
import { randomBytes } from 'node:crypto';
import { VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMConfig } from '../../api/v1alpha1/vmconfig.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Namespace, type Node, NODES, type Pod, PODS } from '../../kube/core.ts';
import { isNotFound } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf, refOf, type KubeObject, type Ref, type Resource } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { isHost } from '../host/observe.ts';
import type { Lookups, Observed } from './observed.ts';

/** Enough for a UUID, a MAC address and a serial number. */
const ENTROPY_BYTES = 32;

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

/** Index of Pods by the host ports they reserve, `8822/TCP`. */
export const PODS_BY_PORT = 'port';
/** Index of Pods by the Node they are bound to. */
export const PODS_BY_NODE = 'node';

export function podPorts(pod: Pod): string[] {
  const ports = pod.spec.containers[0]?.ports ?? [];
  return ports
    .filter(({ hostPort }) => hostPort !== undefined)
    .map(({ hostPort, protocol }) => `${hostPort}/${protocol ?? 'TCP'}`);
}

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

/** That a VM which ran has lost its Pod is recorded for good, so the server is asked before it is believed. */
async function podThatMustExist({ client }: Sources, vm: VM): Promise<Pod | undefined> {
  if (vm.status?.firstRunningTime === undefined || vm.status.failure !== undefined) {
    return undefined;
  }
  const pod = await getOrUndefined(client, PODS, refOf(keyOf(vm)));
  return pod?.metadata.labels?.[VM_UID_LABEL] === vm.metadata.uid ? pod : undefined;
}

/** That a Node is gone gives its VMs up, so the server is asked before it is believed. */
export async function nodeOf(
  { client, nodes }: Pick<Sources, 'client' | 'nodes'>,
  pod: Pod | undefined,
): Promise<Node | undefined> {
  const name = pod?.spec.nodeName;
  return name === undefined
    ? undefined
    : (nodes.cache.get(name) ?? (await getOrUndefined(client, NODES, { name })));
}

/** Of the server; undefined for an object that is not there. */
export async function getOrUndefined<T extends KubeObject>(
  client: KubeClient,
  type: Resource<T>,
  ref: Ref,
): Promise<T | undefined> {
  try {
    return await client.get(type, ref);
  } catch (error) {
    if (isNotFound(error)) {
      return undefined;
    }
    throw error;
  }
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
