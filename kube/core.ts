/** The built-in types of Kubernetes, with only the fields that Berth uses. At run time, objects keep their other fields. */
import { clusterScoped, type KubeObject, namespaced, type ObjectMeta } from './objects.ts';

export interface NodeCondition extends LooseCondition {
  lastHeartbeatTime?: string;
}

export interface NodeAddress {
  type: string;
  address: string;
}

export interface NodeSystemInfo {
  architecture: string;
  operatingSystem: string;
  osImage: string;
  kernelVersion: string;
  kubeletVersion: string;
  kubeProxyVersion: string;
  containerRuntimeVersion: string;
  machineID: string;
  systemUUID: string;
  bootID: string;
}

export interface ContainerImage {
  /** Null if the image was reported without names, because the API server then writes null instead of an empty list. */
  names: string[] | null;
  sizeBytes?: number;
}

export interface NodeStatus {
  capacity?: Record<string, string>;
  allocatable?: Record<string, string>;
  conditions?: NodeCondition[];
  addresses?: NodeAddress[];
  daemonEndpoints?: { kubeletEndpoint?: { Port: number } };
  nodeInfo?: Partial<NodeSystemInfo>;
  images?: ContainerImage[];
}

export interface Node extends KubeObject {
  spec?: { unschedulable?: boolean; taints?: Taint[] };
  status?: NodeStatus;
}

export interface Namespace extends KubeObject {
  status?: { phase?: 'Active' | 'Terminating' };
}

/** Secret. Values of `data` are base64. */
export interface Secret extends KubeObject {
  type?: string;
  immutable?: boolean;
  data?: Record<string, string>;
  stringData?: Record<string, string>;
}

export interface ConfigMap extends KubeObject {
  data?: Record<string, string>;
  binaryData?: Record<string, string>;
  immutable?: boolean;
}

/** Lease. Times are RFC 3339 with microseconds. */
export interface Lease extends KubeObject {
  spec?: {
    holderIdentity?: string;
    leaseDurationSeconds?: number;
    acquireTime?: string;
    renewTime?: string;
    leaseTransitions?: number;
  };
}

/** Subject of a RoleBinding. A ServiceAccount has a namespace, and users and groups have none. */
export interface Subject {
  kind: string;
  name: string;
  apiGroup?: string;
  namespace?: string;
}

/** RoleBinding. Its `roleRef` never changes. */
export interface RoleBinding extends KubeObject {
  roleRef: { apiGroup: string; kind: string; name: string };
  subjects?: Subject[];
}

export interface ObjectReference {
  apiVersion?: string;
  kind?: string;
  namespace?: string;
  name?: string;
  uid?: string;
  resourceVersion?: string;
}

/** Event of `events.k8s.io/v1`. `eventTime` and `lastObservedTime` are RFC 3339 with microseconds. */
export interface Event extends KubeObject {
  eventTime: string;
  reportingController: string;
  reportingInstance: string;
  action: string;
  reason: string;
  regarding: ObjectReference;
  note?: string;
  type: 'Normal' | 'Warning';
  series?: { count: number; lastObservedTime: string };
}

export interface CertificateSigningRequestCondition extends LooseCondition {
  lastUpdateTime?: string;
}

/** CertificateSigningRequest. `request` and `certificate` are base64 of PEM. */
export interface CertificateSigningRequest extends KubeObject {
  spec: {
    request: string;
    signerName: string;
    usages?: string[];
    expirationSeconds?: number;
    username?: string;
    uid?: string;
    groups?: string[];
    extra?: Record<string, string[]>;
  };
  status?: { conditions?: CertificateSigningRequestCondition[]; certificate?: string };
}

export interface Service extends KubeObject {
  spec?: { clusterIPs?: string[] };
}

export interface EndpointSlice extends KubeObject {
  endpoints?: { addresses: string[] }[];
}

/** ServiceCIDR: ranges from which Services get their addresses. The API server creates the ServiceCIDR `kubernetes` from its own flags. */
export interface ServiceCIDR extends KubeObject {
  spec?: { cidrs?: string[] };
}

export interface TokenReview extends KubeObject {
  spec: { token: string; audiences?: string[] };
  status?: {
    authenticated?: boolean;
    user?: { username?: string; uid?: string; groups?: string[]; extra?: Record<string, string[]> };
    audiences?: string[];
    error?: string;
  };
}

/** Request with which a user asks the API server for the user's own name. */
export interface SelfSubjectReview extends KubeObject {
  status?: { userInfo?: { username?: string; groups?: string[] } };
}

export interface SubjectAccessReview extends KubeObject {
  spec: {
    user?: string;
    uid?: string;
    groups?: string[];
    extra?: Record<string, string[]>;
    nonResourceAttributes?: { path: string; verb: string };
    resourceAttributes?: {
      namespace?: string;
      verb: string;
      group?: string;
      version?: string;
      resource: string;
      subresource?: string;
      name?: string;
    };
  };
  status?: { allowed: boolean; denied?: boolean; reason?: string };
}

const CORE = 'v1';

export const PODS = namespaced<Pod>(CORE, 'Pod', 'pods');
export const SERVICE_ACCOUNTS = namespaced<KubeObject>(CORE, 'ServiceAccount', 'serviceaccounts');
export const NODES = clusterScoped<Node>(CORE, 'Node', 'nodes');
export const NAMESPACES = clusterScoped<Namespace>(CORE, 'Namespace', 'namespaces');
export const SECRETS = namespaced<Secret>(CORE, 'Secret', 'secrets');
export const CONFIG_MAPS = namespaced<ConfigMap>(CORE, 'ConfigMap', 'configmaps');
export const ROLE_BINDINGS = namespaced<RoleBinding>(
  'rbac.authorization.k8s.io/v1',
  'RoleBinding',
  'rolebindings',
);
export const LEASES = namespaced<Lease>('coordination.k8s.io/v1', 'Lease', 'leases');
export const EVENTS = namespaced<Event>('events.k8s.io/v1', 'Event', 'events');
export const CERTIFICATE_SIGNING_REQUESTS = clusterScoped<CertificateSigningRequest>(
  'certificates.k8s.io/v1',
  'CertificateSigningRequest',
  'certificatesigningrequests',
);
export const SERVICES = namespaced<Service>(CORE, 'Service', 'services');
export const ENDPOINT_SLICES = namespaced<EndpointSlice>(
  'discovery.k8s.io/v1',
  'EndpointSlice',
  'endpointslices',
);
export const SERVICE_CIDRS = clusterScoped<ServiceCIDR>(
  'networking.k8s.io/v1',
  'ServiceCIDR',
  'servicecidrs',
);
export const TOKEN_REVIEWS = clusterScoped<TokenReview>(
  'authentication.k8s.io/v1',
  'TokenReview',
  'tokenreviews',
);
export const SUBJECT_ACCESS_REVIEWS = clusterScoped<SubjectAccessReview>(
  'authorization.k8s.io/v1',
  'SubjectAccessReview',
  'subjectaccessreviews',
);
export const SELF_SUBJECT_REVIEWS = clusterScoped<SelfSubjectReview>(
  'authentication.k8s.io/v1',
  'SelfSubjectReview',
  'selfsubjectreviews',
);

interface JobSpec {
  template: { metadata?: Partial<ObjectMeta>; spec: PodSpec };
  backoffLimit?: number;
  activeDeadlineSeconds?: number;
  ttlSecondsAfterFinished?: number;
  /** The Job controller creates no Pod while this is true. */
  suspend?: boolean;
}

export interface Job extends KubeObject {
  spec: JobSpec;
  status?: {
    startTime?: string;
    active?: number;
    succeeded?: number;
    failed?: number;
    conditions?: LooseCondition[];
  };
}

export const JOBS = namespaced<Job>('batch/v1', 'Job', 'jobs');

export interface Taint {
  key: string;
  value?: string;
  effect: 'NoSchedule' | 'PreferNoSchedule' | 'NoExecute';
}

export interface Toleration {
  key?: string;
  operator?: 'Exists' | 'Equal';
  value?: string;
  effect?: Taint['effect'];
}

interface ContainerPort {
  name?: string;
  containerPort: number;
  hostPort?: number;
  hostIP?: string;
  protocol?: 'TCP' | 'UDP' | 'SCTP';
}

interface ResourceRequirements {
  requests?: Record<string, string>;
  limits?: Record<string, string>;
}

export interface Container {
  name: string;
  image: string;
  imagePullPolicy?: 'Always' | 'IfNotPresent' | 'Never';
  command?: string[];
  args?: string[];
  stdin?: boolean;
  tty?: boolean;
  env?: { name: string; value?: string }[];
  ports?: ContainerPort[];
  resources?: ResourceRequirements;
}

interface Volume {
  name: string;
  emptyDir?: object;
  secret?: { secretName: string; items?: { key: string; path: string }[]; optional?: boolean };
  configMap?: { name: string };
  hostPath?: { path: string; type?: string };
}

export interface NodeSelectorRequirement {
  key: string;
  operator: 'In' | 'NotIn' | 'Exists' | 'DoesNotExist' | 'Gt' | 'Lt';
  values?: string[];
}

export interface NodeSelectorTerm {
  matchExpressions?: NodeSelectorRequirement[];
  matchFields?: NodeSelectorRequirement[];
}

export interface NodeAffinity {
  requiredDuringSchedulingIgnoredDuringExecution?: { nodeSelectorTerms: NodeSelectorTerm[] };
  preferredDuringSchedulingIgnoredDuringExecution?: { weight: number; preference: NodeSelectorTerm }[];
}

interface PodAffinityTerm {
  labelSelector?: {
    matchLabels?: Record<string, string>;
    matchExpressions?: { key: string; operator: 'Exists' | 'DoesNotExist' }[];
  };
  /** Namespaces of the Pods. An empty selector means all namespaces. Without a selector, it is the namespace of the Pod itself. */
  namespaceSelector?: { matchLabels?: Record<string, string> };
  topologyKey: string;
}

export interface PodSpec {
  nodeName?: string;
  nodeSelector?: Record<string, string>;
  affinity?: {
    nodeAffinity?: NodeAffinity;
    podAffinity?: {
      requiredDuringSchedulingIgnoredDuringExecution?: PodAffinityTerm[];
      preferredDuringSchedulingIgnoredDuringExecution?: {
        weight: number;
        podAffinityTerm: PodAffinityTerm;
      }[];
    };
    podAntiAffinity?: { requiredDuringSchedulingIgnoredDuringExecution?: PodAffinityTerm[] };
  };
  tolerations?: Toleration[];
  containers: Container[];
  initContainers?: Container[];
  volumes?: Volume[];
  imagePullSecrets?: { name: string }[];
  restartPolicy?: 'Always' | 'OnFailure' | 'Never';
  priorityClassName?: string;
  serviceAccountName?: string;
  automountServiceAccountToken?: boolean;
  enableServiceLinks?: boolean;
  terminationGracePeriodSeconds?: number;
  activeDeadlineSeconds?: number;
  schedulerName?: string;
  hostNetwork?: boolean;
}

export interface ContainerState {
  waiting?: { reason?: string; message?: string };
  running?: { startedAt?: string };
  terminated?: {
    exitCode: number;
    signal?: number;
    reason?: string;
    message?: string;
    startedAt?: string;
    finishedAt?: string;
    containerID?: string;
  };
}

export interface ContainerStatus {
  name: string;
  state?: ContainerState;
  lastState?: ContainerState;
  ready: boolean;
  started?: boolean;
  restartCount: number;
  image: string;
  imageID: string;
  containerID?: string;
  /** Resources that the host has granted to the container. */
  allocatedResources?: Record<string, string>;
  /** Resources that the container has now. If the status lacks this field, the API server refuses to resize a running container. */
  resources?: ResourceRequirements;
}

/** Condition of a Pod or a Node. It is a `metav1.Condition` with optional reason, message and times. */
export interface LooseCondition {
  type: string;
  status: 'True' | 'False' | 'Unknown';
  reason?: string;
  message?: string;
  lastTransitionTime?: string;
  observedGeneration?: number;
}

export interface PodCondition extends LooseCondition {
  lastProbeTime?: string;
}

export type PodPhase = 'Pending' | 'Running' | 'Succeeded' | 'Failed' | 'Unknown';

export interface PodStatus {
  phase?: PodPhase;
  conditions?: PodCondition[];
  reason?: string;
  message?: string;
  nominatedNodeName?: string;
  hostIP?: string;
  hostIPs?: { ip: string }[];
  podIP?: string;
  podIPs?: { ip: string }[];
  qosClass?: string;
  startTime?: string;
  observedGeneration?: number;
  containerStatuses?: ContainerStatus[];
}

export interface Pod extends KubeObject {
  spec: PodSpec;
  status?: PodStatus;
}
