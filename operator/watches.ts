/** Declares all watches of the operator, with the indexes of their caches. */
import type { Logger } from 'pino';
import { digestsOf, referenceOf } from '../api/v1alpha1/cachetargets.ts';
import {
  ADMIN_ROLE,
  DEV_ROLE,
  EMULATOR_UID_LABEL,
  HOST_KEY,
  HOST_VALUE,
  STORAGE_WRITERS,
  VM_UID_LABEL,
  WORKLOAD_LABEL,
} from '../api/v1alpha1/names.ts';
import type { KubeClient } from '../kube/client.ts';
import {
  CERTIFICATE_SIGNING_REQUESTS,
  CONFIG_MAPS,
  JOBS,
  NAMESPACES,
  NODES,
  PODS,
  ROLE_BINDINGS,
} from '../kube/core.ts';
import { Informer } from '../kube/informer.ts';
import type { OperatorConfig } from './config/config.ts';
import {
  EMULATORS,
  IMAGE_CACHE_ENTRIES,
  IMAGES,
  ISOS,
  SERVERS,
  VM_CONFIGS,
  VM_POOLS,
  VMS,
  VM_SNAPSHOTS,
} from '../api/v1alpha1/resources.ts';
import { EMULATORS_BY_VM } from './emulator/controller.ts';
import { vmKeyOf } from './emulator/observe.ts';
import {
  GUARD_WORKLOAD,
  ownerOfRemovable,
  REMOVABLE_BY_OWNER,
  trimForeignPod,
} from './foreignpods/removal.ts';
import { requestIndexes } from './certificates/controller.ts';
import { approvalsSelector } from './host/approvals.ts';
import { watchAddresses } from './certificates/addresses.ts';
import { nodeOfPod, PODS_BY_NODE, trimNode } from './host/observe.ts';
import { recordsSelector } from './host/records.ts';
import {
  ENTRIES_BY_DIGEST,
  ENTRIES_BY_IMAGE,
  ENTRIES_BY_NAMESPACE,
  ENTRIES_BY_QUEUED_HOST,
  ENTRIES_BY_REFERENCE,
  ENTRIES_BY_UID,
  keyOfImage,
  queuedHosts,
} from './imagecache/observe.ts';
import { poolOfVM, VMS_BY_POOL } from './pool/observe.ts';
import { addressesOf, SERVERS_BY_ADDRESS } from './server/observe.ts';
import { nodeOfServer, SERVERS_BY_NODE } from './host/power.ts';
import { ownersOf, ownersOfPod, TASKS_BY_OWNER } from './tasks/owner.ts';
import { hostOfJob, HOSTS_BY_NAMESPACE, JOBS_BY_HOST, namespaceOfHost } from './tasks/placement.ts';
import { givenUpOn, NODES_BY_GIVEN_UP } from './vm/abandoned.ts';
import {
  PODS_WITHOUT_HOST,
  unboundPods,
  VMS_BY_CONFIG,
  VMS_BY_IMAGE,
  VMS_WITHOUT_HOST,
  withoutHost,
} from './vm/triggers.ts';
import { awaitedPorts, PODS_BY_AWAITED_PORT } from './vm/observe.ts';
import { PODS_BY_PORT, podPorts, trimPod } from './podbacked/pod.ts';
import { SNAPSHOTS_BY_VM, vmKeyOf as vmKeyOfSnapshot } from './vm/snapshots.ts';

interface WatchOptions {
  readonly client: KubeClient;
  readonly config: OperatorConfig;
  readonly logger: Logger;
}

export type OperatorWatches = ReturnType<typeof declareWatches>;

/** Label selector of the Jobs that work on images, and of their Pods. */
const TASKS = `${WORKLOAD_LABEL} in (cache,image)`;

export function declareWatches({ client, config, logger }: WatchOptions) {
  const base = { logger };
  return {
    vms: new Informer(client, VMS, {
      ...base,
      indexes: {
        [VMS_BY_CONFIG]: (vm) => (vm.spec.configRef === undefined ? [] : [vm.spec.configRef.name]),
        [VMS_BY_IMAGE]: (vm) => [vm.spec.image, vm.spec.iso].filter((name) => name !== undefined),
        [VMS_WITHOUT_HOST]: withoutHost,
        [VMS_BY_POOL]: poolOfVM,
      },
    }),
    vmConfigs: new Informer(client, VM_CONFIGS, base),
    snapshots: new Informer(client, VM_SNAPSHOTS, {
      ...base,
      indexes: { [SNAPSHOTS_BY_VM]: (snapshot) => [vmKeyOfSnapshot(snapshot)] },
    }),
    pools: new Informer(client, VM_POOLS, base),
    images: new Informer(client, IMAGES, base),
    isos: new Informer(client, ISOS, base),
    pods: new Informer(client, PODS, {
      ...base,
      labelSelector: VM_UID_LABEL,
      transform: trimPod,
      indexes: {
        [PODS_BY_NODE]: nodeOfPod,
        [PODS_BY_PORT]: podPorts,
        [PODS_BY_AWAITED_PORT]: awaitedPorts,
        [PODS_WITHOUT_HOST]: unboundPods,
      },
    }),
    // The selector also finds Nodes that lost the label {@link HOST_MARK}, because the operator also manages the machines on them.
    nodes: new Informer(client, NODES, {
      ...base,
      labelSelector: `${HOST_KEY}=${HOST_VALUE}`,
      transform: trimNode,
      indexes: { [NODES_BY_GIVEN_UP]: givenUpOn, [HOSTS_BY_NAMESPACE]: namespaceOfHost },
    }),
    jobs: new Informer(client, JOBS, {
      ...base,
      labelSelector: TASKS,
      indexes: { [TASKS_BY_OWNER]: ownersOf, [JOBS_BY_HOST]: hostOfJob },
    }),
    taskPods: new Informer(client, PODS, {
      ...base,
      labelSelector: TASKS,
      transform: trimPod,
      indexes: { [TASKS_BY_OWNER]: ownersOfPod, [PODS_BY_NODE]: nodeOfPod },
    }),
    entries: new Informer(client, IMAGE_CACHE_ENTRIES, {
      ...base,
      indexes: {
        [ENTRIES_BY_UID]: ({ metadata: { uid = '' } }) => [uid],
        [ENTRIES_BY_NAMESPACE]: ({ metadata: { namespace = '' } }) => [namespace],
        [ENTRIES_BY_REFERENCE]: (entry) => [keyOfImage(entry)],
        [ENTRIES_BY_IMAGE]: (entry) => [referenceOf(entry)],
        [ENTRIES_BY_DIGEST]: digestsOf,
        [ENTRIES_BY_QUEUED_HOST]: queuedHosts,
      },
    }),
    emulators: new Informer(client, EMULATORS, {
      ...base,
      indexes: { [EMULATORS_BY_VM]: (emulator) => [vmKeyOf(emulator)] },
    }),
    emulatorPods: new Informer(client, PODS, {
      ...base,
      labelSelector: EMULATOR_UID_LABEL,
      transform: trimPod,
      indexes: { [PODS_BY_NODE]: nodeOfPod },
    }),
    // Pods of other programs between their binding and their start. Almost all of them leave this cache within seconds.
    foreignPods: new Informer(client, PODS, {
      ...base,
      labelSelector: `!${WORKLOAD_LABEL}`,
      fieldSelector: 'status.phase=Pending,spec.nodeName!=',
      transform: trimForeignPod,
      indexes: { [REMOVABLE_BY_OWNER]: ownerOfRemovable },
    }),
    guards: new Informer(client, PODS, {
      ...base,
      labelSelector: `${WORKLOAD_LABEL}=${GUARD_WORKLOAD}`,
      transform: trimPod,
    }),
    servers: new Informer(client, SERVERS, {
      ...base,
      indexes: { [SERVERS_BY_ADDRESS]: addressesOf, [SERVERS_BY_NODE]: nodeOfServer },
    }),
    namespaces: new Informer(client, NAMESPACES, base),
    // The operator reads only RoleBindings of two names, and has no right to read others. A field selector can contain only one name, so
    // each name has its own watch.
    devBindings: new Informer(client, ROLE_BINDINGS, { ...base, fieldSelector: `metadata.name=${DEV_ROLE}` }),
    adminBindings: new Informer(client, ROLE_BINDINGS, {
      ...base,
      fieldSelector: `metadata.name=${ADMIN_ROLE}`,
    }),
    storageWriters: new Informer(client, ROLE_BINDINGS, {
      ...base,
      namespace: config.namespaces.system,
      fieldSelector: `metadata.name=${STORAGE_WRITERS}`,
    }),
    requests: new Informer(client, CERTIFICATE_SIGNING_REQUESTS, {
      ...base,
      indexes: requestIndexes(config),
    }),
    approvals: new Informer(client, CONFIG_MAPS, { ...base, ...approvalsSelector(config.namespaces.system) }),
    recordsMap: new Informer(client, CONFIG_MAPS, { ...base, ...recordsSelector(config.namespaces.system) }),
    addresses: watchAddresses(client, logger, config),
  };
}
