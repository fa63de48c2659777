/** The built-in types of Kubernetes, with only the fields that Berth uses. At run time, objects keep their other fields. */
import { type KubeObject, resource } from './objects.ts';
import type { LooseCondition, Pod, Taint } from './pod.ts';

export type * from './pod.ts';

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
  spec?: { unschedulable?: boolean; taints?: Taint[]; providerID?: string; podCIDR?: string };
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
  status?: { allowed: boolean; denied?: boolean; reason?: string; evaluationError?: string };
}

const CORE = 'v1';

export const PODS = resource<Pod>({ apiVersion: CORE, kind: 'Pod', plural: 'pods', namespaced: true });
export const SERVICE_ACCOUNTS = resource<KubeObject>({
  apiVersion: CORE,
  kind: 'ServiceAccount',
  plural: 'serviceaccounts',
  namespaced: true,
});
export const NODES = resource<Node>({ apiVersion: CORE, kind: 'Node', plural: 'nodes', namespaced: false });
export const NAMESPACES = resource<Namespace>({
  apiVersion: CORE,
  kind: 'Namespace',
  plural: 'namespaces',
  namespaced: false,
});
export const SECRETS = resource<Secret>({
  apiVersion: CORE,
  kind: 'Secret',
  plural: 'secrets',
  namespaced: true,
});
export const CONFIG_MAPS = resource<ConfigMap>({
  apiVersion: CORE,
  kind: 'ConfigMap',
  plural: 'configmaps',
  namespaced: true,
});
export const ROLE_BINDINGS = resource<RoleBinding>({
  apiVersion: 'rbac.authorization.k8s.io/v1',
  kind: 'RoleBinding',
  plural: 'rolebindings',
  namespaced: true,
});
export const LEASES = resource<Lease>({
  apiVersion: 'coordination.k8s.io/v1',
  kind: 'Lease',
  plural: 'leases',
  namespaced: true,
});
export const EVENTS = resource<Event>({
  apiVersion: 'events.k8s.io/v1',
  kind: 'Event',
  plural: 'events',
  namespaced: true,
});
export const CERTIFICATE_SIGNING_REQUESTS = resource<CertificateSigningRequest>({
  apiVersion: 'certificates.k8s.io/v1',
  kind: 'CertificateSigningRequest',
  plural: 'certificatesigningrequests',
  namespaced: false,
});
export const SERVICES = resource<Service>({
  apiVersion: CORE,
  kind: 'Service',
  plural: 'services',
  namespaced: true,
});
export const ENDPOINT_SLICES = resource<EndpointSlice>({
  apiVersion: 'discovery.k8s.io/v1',
  kind: 'EndpointSlice',
  plural: 'endpointslices',
  namespaced: true,
});
export const SERVICE_CIDRS = resource<ServiceCIDR>({
  apiVersion: 'networking.k8s.io/v1',
  kind: 'ServiceCIDR',
  plural: 'servicecidrs',
  namespaced: false,
});
export const TOKEN_REVIEWS = resource<TokenReview>({
  apiVersion: 'authentication.k8s.io/v1',
  kind: 'TokenReview',
  plural: 'tokenreviews',
  namespaced: false,
});
export const SUBJECT_ACCESS_REVIEWS = resource<SubjectAccessReview>({
  apiVersion: 'authorization.k8s.io/v1',
  kind: 'SubjectAccessReview',
  plural: 'subjectaccessreviews',
  namespaced: false,
});
export const SELF_SUBJECT_REVIEWS = resource<SelfSubjectReview>({
  apiVersion: 'authentication.k8s.io/v1',
  kind: 'SelfSubjectReview',
  plural: 'selfsubjectreviews',
  namespaced: false,
});
