/** Builds the Pod of a VM: requests and affinity for the scheduler, and two annotations for the host's agent. */
import { createHash } from 'node:crypto';
import { diskRequest, vmRequests } from '../../api/v1alpha1/hostspace.ts';
import {
  POD_FINALIZER,
  SCREEN_PORT,
  SCREEN_PORT_NAME,
  TAG_LABEL_PREFIX,
  VM_UID_LABEL,
  vncSecretName,
  WORKLOAD_LABEL,
} from '../../api/v1alpha1/names.ts';
import {
  type Desired,
  DESIRED_FIELDS,
  type Machine,
  MACHINE_API_VERSION,
  MACHINE_FIELDS,
} from '../../api/v1alpha1/machine.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { NodeSelectorRequirement, Pod, PodSpec } from '../../kube/core.ts';
import type { Unsaved } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import type { Placement } from '../tasks/placement.ts';
import { portName } from '../../api/v1alpha1/ports.ts';
import { automaticPorts, reservedPorts } from './ports.ts';
import type { Resolved } from './resolve.ts';
import { machineMetadata, machineSpec } from '../podbacked/build.ts';
import { insecureAnnotation } from '../objects/registries.ts';
import { desiredDisk } from './snapshots.ts';

/** Beginning of the keys of Berth's labels. */
const KEY_PREFIX = 'berth.dev/';

export interface VMPodOptions {
  readonly vm: VM;
  readonly resolved: Resolved;
  readonly attempt: number;
  /** Names of hosts on which an earlier attempt to start the VM failed. */
  readonly avoidedNodes: readonly string[];
  /** Whether the VMs of the namespace run on its own hosts only. */
  readonly isDedicated: boolean;
  readonly config: OperatorConfig;
  readonly clusterUid: string;
  /** Returns at least 64 hex digits, for `hardwareIdentity: Dynamic`. */
  readonly random: () => string;
}

export function buildPod(options: VMPodOptions): Unsaved<Pod> {
  const { vm, resolved } = options;
  const { name, uid = '' } = vm.metadata;
  const disk = desiredDisk({ vm, pod: undefined, snapshots: [] });
  const metadata = machineMetadata(
    'VM',
    vm.metadata,
    buildMachine(options),
    buildDesired(vm, resolved, disk),
  );
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      ...metadata,
      name,
      labels: { ...copiedLabels(vm), [VM_UID_LABEL]: uid, [WORKLOAD_LABEL]: 'vm' },
      annotations: { ...metadata.annotations, ...insecureAnnotation(resolved.credentials) },
      finalizers: [POD_FINALIZER],
    },
    spec: buildSpec(options),
  };
}

/**
 * Returns the labels of the VM that its Pod gets, so that Services, NetworkPolicies and programs for costs and queues can select the Pod. The
 * labels of Berth stay out, because they have a meaning on a Pod.
 */
function copiedLabels({ metadata: { labels = {} } }: VM): Record<string, string> {
  return Object.fromEntries(Object.entries(labels).filter(([key]) => !key.startsWith(KEY_PREFIX)));
}

/**
 * Returns the content of the annotation `berth.dev/desired`, which can change while the Pod exists. When the agent has reached the desired
 * state, it reports a hash of this text.
 */
export function buildDesired(
  vm: VM,
  base: { cpu: number; memoryBytes: bigint; diskSizeBytes: bigint | undefined },
  disk: ReturnType<typeof desiredDisk>,
): Desired {
  const { spec } = vm;
  return {
    ...pickFields(spec, DESIRED_FIELDS),
    powerState: spec.powerState ?? 'Running',
    restartPolicy: spec.restartPolicy ?? 'Never',
    cpu: base.cpu,
    memoryBytes: Number(base.memoryBytes),
    diskSizeBytes: base.diskSizeBytes === undefined ? undefined : Number(base.diskSizeBytes),
    ...disk,
  };
}

/**
 * Returns the content of the annotation `berth.dev/machine`. The return type requires every field, so that no field can be forgotten here.
 * The JSON omits fields whose value is undefined.
 */
function buildMachine(options: VMPodOptions): { [Field in keyof Required<Machine>]: Machine[Field] } {
  const { vm, resolved, attempt } = options;
  const { spec } = vm;
  const { name, namespace = '', uid = '' } = vm.metadata;
  const { diskSizeBytes, readiness } = resolved;
  return {
    apiVersion: MACHINE_API_VERSION,
    vm: { namespace, name, uid },
    config: resolved.config,
    attempt,
    ...pickFields(resolved, MACHINE_FIELDS),
    ...machineImages(resolved),
    diskSizeBytes: diskSizeBytes === undefined ? undefined : Number(diskSizeBytes),
    network: { mode: resolved.networkMode },
    ports: reservedPorts(resolved),
    automaticPorts: automaticPorts(resolved),
    vnc: { enabled: resolved.vncEnabled },
    readiness: { type: readiness.type ?? 'None', port: readiness.port },
    hardware: hardwareIdentity(options),
    guestMetadata: spec.guestMetadata ?? {},
    userData: resolved.userData,
    userDataSecretRef: resolved.userDataSecretRef,
    sshAuthorizedKeys: [...resolved.sshAuthorizedKeys],
  };
}

function pickFields<T, Name extends keyof T>(from: T, names: readonly Name[]): Pick<T, Name> {
  return Object.fromEntries(names.map((name) => [name, from[name]])) as Pick<T, Name>;
}

function machineImages({ image, iso }: Resolved) {
  return {
    image: image?.source,
    imageFormat: image?.format ?? 'Auto',
    imageName: image?.name,
    iso: iso?.source,
    isoName: iso?.name,
  } as const;
}

/**
 * Returns UUID, serial number and MAC address. The function computes these values from the cluster's uid, the namespace and the name.
 * Because of the uid, two clusters in one network never have the same values. If `hardwareIdentity` is Dynamic, the values are random. The
 * MAC address is locally administered and unicast (IEEE 802: second-lowest bit of the first octet set, lowest bit clear).
 */
function hardwareIdentity({ vm, resolved, clusterUid, random }: VMPodOptions): Machine['hardware'] {
  const { namespace = '', name } = vm.metadata;
  // Slashes separate the parts of the seed, and no part contains a slash. Therefore two different names never give the same seed.
  const seed = resolved.hardwareIdentity === 'Dynamic' ? random() : `${clusterUid}/${namespace}/${name}`;
  const digest = createHash('sha256').update(`berth-hardware:${seed}`).digest('hex');
  const uuid = [
    digest.slice(0, 8),
    digest.slice(8, 12),
    `4${digest.slice(13, 16)}`,
    `8${digest.slice(17, 20)}`,
    digest.slice(20, 32),
  ].join('-');
  const mac = ['02', ...[0, 2, 4, 6, 8].map((at) => digest.slice(32 + at, 34 + at))].join(':');
  const serialNumber = vm.spec.serialNumber ?? `B${digest.slice(44, 55).toUpperCase()}`;
  return { uuid, serialNumber, macAddress: mac };
}

function buildSpec(options: VMPodOptions): PodSpec {
  const { vm, resolved, config } = options;
  const resources: Record<string, string> = {
    ...vmRequests(resolved, config.vm_shared_disk_enabled),
    'ephemeral-storage': diskRequest(resolved, config),
  };
  const image = resolved.image ?? resolved.iso;
  const spec = machineSpec({
    placement: placementOf(options),
    pullSecrets: resolved.imagePullSecrets,
    config,
    resources,
    container: {
      image: image?.containerImage ?? '',
      // Because of these fields, `kubectl attach` can send input to the console and use a terminal.
      stdin: true,
      tty: true,
      ports: containerPorts(resolved),
    },
    volumes: volumes(vm, resolved),
  });
  return { ...spec, affinity: { ...spec.affinity, ...packTogether(resolved, config) } };
}

/**
 * Returns the ports of the Pod: the reserved host ports, and the port of the screen. The port of the screen is not a host port. It is
 * reachable only with `kubectl port-forward`.
 */
function containerPorts(resolved: Resolved): NonNullable<PodSpec['containers'][number]['ports']> {
  const reserved = reservedPorts(resolved).map(({ protocol, hostPort }) => ({
    name: portName({ hostPort, protocol }),
    protocol,
    containerPort: hostPort,
    hostPort,
  }));
  const screen = { name: SCREEN_PORT_NAME, protocol: 'TCP' as const, containerPort: SCREEN_PORT };
  return resolved.vncEnabled ? [...reserved, screen] : reserved;
}

/**
 * Returns the volumes of the Pod. The `emptyDir` is a placeholder for the VM's disk. Because of this volume, `kubectl drain` requires the
 * flag --delete-emptydir-data before it destroys the disk.
 */
function volumes(
  vm: VM,
  { vncHostPort, userDataSecretRef: secret }: Resolved,
): NonNullable<PodSpec['volumes']> {
  return [
    { name: 'disk', emptyDir: {} },
    ...(secret === undefined
      ? []
      : [
          {
            name: 'user-data',
            secret: { secretName: secret.name, items: [{ key: secret.key, path: 'user-data' }] },
          },
        ]),
    ...(vncHostPort ? [{ name: 'vnc', secret: { secretName: vncSecretName(vm.metadata.name) } }] : []),
  ];
}

function placementOf({ vm, resolved, avoidedNodes, isDedicated }: VMPodOptions): Placement {
  const { architecture, placement } = resolved;
  const tag: NodeSelectorRequirement | undefined =
    placement.tag === undefined
      ? undefined
      : { key: `${TAG_LABEL_PREFIX}${placement.tag}`, operator: 'Exists' };
  const isRequired = tag !== undefined && placement.tagPolicy === 'Required';
  return {
    dedicatedTo: vm.metadata.namespace ?? '',
    isStrict: isDedicated,
    architecture,
    nodeName: placement.node,
    avoidedNodes,
    required: isRequired ? [tag] : [],
    preferred: isRequired ? undefined : tag,
  };
}

/**
 * Returns affinity to other VMs if the placement's strategy is `MostAllocated`. This strategy prefers hosts that already run VMs. The
 * operator uses affinity for this, because a single Pod cannot change the strategy of the scheduler.
 */
function packTogether(
  { placement }: Resolved,
  { powerByDemand }: OperatorConfig,
): Pick<NonNullable<PodSpec['affinity']>, 'podAffinity'> {
  // Only hosts that are filled one after the other become empty, so that they can be switched off.
  const usual = powerByDemand.enabled ? 'MostAllocated' : 'Default';
  if ((placement.strategy ?? usual) !== 'MostAllocated') {
    return {};
  }
  const podAffinityTerm = {
    labelSelector: { matchLabels: { [WORKLOAD_LABEL]: 'vm' } },
    namespaceSelector: {},
    topologyKey: 'kubernetes.io/hostname',
  };
  return {
    podAffinity: { preferredDuringSchedulingIgnoredDuringExecution: [{ weight: 100, podAffinityTerm }] },
  };
}
