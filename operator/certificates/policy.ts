/**
 * Decides whether a requester gets the requested certificate. Berth does not use the automatic approval of Kubernetes, because somebody
 * with a bootstrap token could then get the certificate of an existing node. Berth decides only about requests of its hosts. A person or
 * another approver decides about requests of the cluster's other nodes. All functions are pure.
 */
import { isHost } from '../tasks/placement.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { InvalidSigningRequestError, type SigningRequest } from '../../kube/certificates/request.ts';
import type { CertificateSigningRequest, Node } from '../../kube/core.ts';
import { hostNameOf, type CertificateRefusal, refusalOfAddresses, type Surroundings } from './addresses.ts';
import {
  BOOTSTRAP_GROUP,
  bootstrapGroupOf,
  FIRST_CERTIFICATE_SECONDS,
  isHostName,
} from '../../api/v1alpha1/names.ts';
import type { OperatorConfig } from '../config/config.ts';

export type CertificateDecision =
  | { readonly kind: 'approve'; readonly message: string }
  | ({ readonly kind: 'deny' } & CertificateRefusal)
  /** The request does not come from a Berth host, so Berth does not judge it. */
  | { readonly kind: 'ignore' }
  /**
   * The requester has no Node at the moment, so Berth cannot know whether the requester is a host. Berth waits, because a host would create
   * its Node again at once.
   */
  | { readonly kind: 'wait' };

/**
 * A host's request for its own serving certificate. The request is valid, except that its addresses are not checked yet: see
 * {@link decideServing}.
 */
export interface ServingQuestion {
  readonly kind: 'serving';
  readonly addresses: readonly string[];
  readonly node: Node;
}

/** Content of a certificate request, or the error if this content cannot be read. */
export type RequestContent = SigningRequest | InvalidSigningRequestError;

/** Requester whose certificate request Berth might have to approve or deny: a joining host or a node. */
export type Requester =
  | Joining
  /**
   * Requester with the user name of the node `name`, or with the token of the agent's Pod for the host `name`. Only the Node object shows
   * whether this node is a host. `kubelet` is the name of the Node on which the agent's Pod runs.
   */
  | { readonly kind: 'node'; readonly name: string; readonly kubelet?: string };

/** Returns the requester of a request. The result is undefined if the requester is neither a node nor a joining host. */
export function requesterOf(csr: CertificateSigningRequest, config: JoiningConfig): Requester | undefined {
  const { username = '', groups = [], signerName } = csr.spec;
  if (groups.includes(NODES_GROUP)) {
    const name = nodeNameOfUser(username);
    return name === undefined ? undefined : { kind: 'node', name };
  }
  const joining = joiningOf(csr, config);
  // A host without a client certificate asks with the token of its agent's Pod. This token is only for the name of one host, too.
  const { host, node } = joining ?? {};
  return signerName === config.hosts.servingSigner && node !== undefined && typeof host === 'string'
    ? { kind: 'node', name: host, kubelet: node }
    : joining;
}

/**
 * Returns the name of the Node on which the decision depends. If the requester is a node, this is the requester's own name. If the
 * requester is a joining host, this is the name in the request.
 */
export function nodeToKnow(requester: Requester, request: RequestContent): string | undefined {
  if (requester.kind === 'node') {
    return requester.name;
  }
  return request instanceof InvalidSigningRequestError ? undefined : nodeNameOf(request);
}

/** Facts that a decision needs in addition to the request. */
export interface Known {
  /** Node whose name {@link nodeToKnow} returns, just read from the API server. It is undefined if the Node does not exist. */
  readonly node: Node | undefined;
  /** Name of another request that competes for the first certificate of the same host: see `rivalOf` in joining.ts. */
  readonly rival?: string | undefined;
  /** Names of the Nodes from which the same host name is derived. The Node of the requester can be among them. */
  readonly namesakes?: readonly string[] | undefined;
  /** Whether Pods of machines are bound to the name, although there is perhaps no Node. */
  readonly holdsMachines?: boolean | undefined;
}

export function decide(
  requester: Requester,
  { spec }: CertificateSigningRequest,
  request: RequestContent,
  known: Known,
): CertificateDecision | ServingQuestion {
  const { node } = known;
  if (requester.kind === 'node' && node === undefined) {
    return { kind: 'wait' };
  }
  if (requester.kind === 'node' && !isHost(node)) {
    return { kind: 'ignore' };
  }
  if (request instanceof InvalidSigningRequestError) {
    return deny('InvalidRequest', `The field spec.request is refused: ${request.message}`);
  }
  const refusal = refusalOfContent(spec, request, requester.kind === 'joining');
  return refusal === undefined ? decideOurs(requester, spec, request, known) : { kind: 'deny', ...refusal };
}

function decideOurs(
  requester: Requester,
  { signerName, username }: CertificateSigningRequest['spec'],
  request: SigningRequest,
  known: Known,
): CertificateDecision | ServingQuestion {
  const name = nodeNameOf(request) ?? '';
  if (requester.kind === 'joining') {
    return decideFirst(requester, name, known, signerName);
  }
  const isServing = signerName !== CLIENT_SIGNER;
  if (requester.name !== name) {
    return notItself(
      `${username} is allowed to ${isServing ? 'request only its own serving' : 'renew only its own'} certificate`,
      name,
    );
  }
  return isServing
    ? decideOwnServing(requester.kubelet, name, request, known)
    : { kind: 'approve', message: 'The host renews its own certificate' };
}

function decideOwnServing(
  kubelet: string | undefined,
  name: string,
  { ipAddresses: addresses }: SigningRequest,
  known: Known,
): CertificateDecision | ServingQuestion {
  const { node } = known;
  if (node === undefined) {
    return { kind: 'wait' };
  }
  return refusalOfNamesakes(kubelet, name, known) ?? { kind: 'serving', addresses, node };
}

function notItself(rule: string, name: string): CertificateDecision {
  return deny('NotItself', `${rule}, but the request is for the certificate of ${NODE_USER_PREFIX}${name}`);
}

function decideFirst(
  { host, node: kubelet }: Joining,
  name: string,
  known: Known,
  signerName: string,
): CertificateDecision {
  const { node, rival, holdsMachines = false } = known;
  if (typeof host !== 'string') {
    return { kind: 'deny', ...host };
  }
  if (signerName !== CLIENT_SIGNER) {
    return notItself('This credential is only for a client certificate', name);
  }
  if (host !== name) {
    return notItself(`This credential is only for the certificate of host ${host}`, name);
  }
  if (node !== undefined) {
    return deny(
      'NodeExists',
      `Node ${name} exists already. If the earlier host is gone for good, run: berth node give-up ${name} && kubectl delete node ${name}`,
    );
  }
  if (holdsMachines) {
    return deny(
      'MachinesBound',
      `VMs or emulators are still on host ${name}, whose Node is missing. Its earlier certificate creates the Node again. If the earlier host is gone for good, run: berth node give-up ${name}`,
    );
  }
  const approval: CertificateDecision =
    rival === undefined
      ? { kind: 'approve', message: `Host ${name} joins` }
      : deny(
          'RequestOpen',
          `Another request for host ${name}, ${rival}, is open or approved. If the host did not create that request, run: kubectl delete csr ${rival}`,
        );
  return refusalOfNamesakes(kubelet, name, known) ?? approval;
}

/** Returns a denial if the names of other Nodes give the same host name as the name of the kubelet's Node. */
function refusalOfNamesakes(
  kubelet: string | undefined,
  name: string,
  { namesakes = [] }: Known,
): CertificateDecision | undefined {
  const others = kubelet === undefined ? [] : namesakes.filter((other) => other !== kubelet);
  return others.length === 0
    ? undefined
    : deny(
        'HostNameShared',
        `The Nodes ${kubelet} and ${others.join(', ')} would share the host ${name}, because dots become hyphens in the names of hosts. Rename one of them, or take it out of agent.nodeSelector and delete its Node`,
      );
}

export function decideServing(
  { addresses, node }: ServingQuestion,
  surroundings: Surroundings,
): CertificateDecision {
  const refusal = refusalOfAddresses(addresses, node, surroundings);
  return refusal === undefined
    ? { kind: 'approve', message: `The host is allowed to serve at ${addresses.join(', ')}` }
    : { kind: 'deny', ...refusal };
}

function deny(reason: Reason, message: string): CertificateDecision {
  return { kind: 'deny', reason, message };
}

export const CLIENT_SIGNER = 'kubernetes.io/kube-apiserver-client-kubelet';
export const SERVING_SIGNER = 'kubernetes.io/kubelet-serving';

const NODES_GROUP = 'system:nodes';
export const NODE_USER_PREFIX = 'system:node:';

type Spec = CertificateSigningRequest['spec'];

/**
 * Usages that a request must have. The signers also accept the usage `key encipherment`. A host must not request that usage, because hosts
 * use their keys only for signatures.
 */
const CLIENT_USAGES = ['client auth', 'digital signature'];
const SERVING_USAGES = ['digital signature', 'server auth'];

/** Returns the Node name in a request's subject. The result is undefined if the subject is not the subject of a host. */
function nodeNameOf({ organization, commonName }: SigningRequest): string | undefined {
  const name = nodeNameOfUser(commonName);
  return organization === NODES_GROUP && name !== undefined && isHostName(name) ? name : undefined;
}

/** Returns NAME if the user name has the form `system:node:NAME`. For any other user name, the result is undefined. */
function nodeNameOfUser(user: string): string | undefined {
  const name = user.startsWith(NODE_USER_PREFIX) ? user.slice(NODE_USER_PREFIX.length) : '';
  return name === '' ? undefined : name;
}

/** Returns the reason why a certificate request must be denied. The result is undefined if its names, usages and lifetime are allowed. */
function refusalOfContent(
  spec: Spec,
  request: SigningRequest,
  isFirst: boolean,
): CertificateRefusal | undefined {
  return (
    refusalOfSubject(request) ??
    refusalOfUsages(spec) ??
    refusalOfNames(spec, request) ??
    (isFirst ? refusalOfLifetime(spec) : undefined)
  );
}

function refusalOfSubject(request: SigningRequest): CertificateRefusal | undefined {
  return nodeNameOf(request) === undefined
    ? {
        reason: 'InvalidSubject',
        message: `The subject must be O=${NODES_GROUP}, CN=${NODE_USER_PREFIX}NAME. NAME must be a lower-case DNS label of at most 63 characters`,
      }
    : undefined;
}

function refusalOfUsages({ signerName, usages = [] }: Spec): CertificateRefusal | undefined {
  const right = signerName === CLIENT_SIGNER ? CLIENT_USAGES : SERVING_USAGES;
  const asked = usages.toSorted();
  return asked.length === right.length && asked.every((usage, index) => usage === right[index])
    ? undefined
    : {
        reason: 'InvalidUsages',
        message: `The usages for ${signerName} must be exactly ${right.join(', ')}, but the request has ${asked.join(', ')}`,
      };
}

function refusalOfNames({ signerName }: Spec, request: SigningRequest): CertificateRefusal | undefined {
  const names = [...request.dnsNames, ...request.ipAddresses];
  if (signerName === CLIENT_SIGNER) {
    return names.length === 0
      ? undefined
      : {
          reason: 'InvalidNames',
          message: `A client certificate must not have subject alternative names, but the request has ${names.join(', ')}`,
        };
  }
  if (request.dnsNames.length > 0) {
    return {
      reason: 'InvalidNames',
      message: `A serving certificate must contain only IP addresses, but the request contains the names ${request.dnsNames.join(', ')}`,
    };
  }
  return names.length > 0
    ? undefined
    : {
        reason: 'InvalidNames',
        message: 'A serving certificate must contain at least one address of the host (subjectAltName)',
      };
}

/**
 * Refuses a request for a certificate whose lifetime exceeds the limit. Also refuses a request that states no lifetime, because the signer
 * would then grant one year.
 */
function refusalOfLifetime({ expirationSeconds }: Spec): CertificateRefusal | undefined {
  return expirationSeconds !== undefined && expirationSeconds <= FIRST_CERTIFICATE_SECONDS
    ? undefined
    : {
        reason: 'InvalidLifetime',
        message: `The request for the first certificate of a host must have spec.expirationSeconds of at most ${FIRST_CERTIFICATE_SECONDS}, but this request has ${expirationSeconds ?? 'none'}`,
      };
}

/**
 * Key of the node name in a requester's user information. The API server sets this name for a projected token that is bound to a
 * node. No client can set it.
 */
const NODE_NAME_EXTRA = 'authentication.kubernetes.io/node-name';
/**
 * Beginning of the name of a bootstrap token's group. The rest of the group's name is the name of the host for which the token is valid.
 */
const NAME_GROUP_PREFIX = bootstrapGroupOf('');

/** Requester with a credential for joining the cluster as a host. */
interface Joining {
  readonly kind: 'joining';
  /** Name of the host for which the credential is valid. The value is a refusal if the credential is not valid for exactly one host. */
  readonly host: string | CertificateRefusal;
  /** Name of the kubelet's Node from which the name of the host is derived. It is undefined for a bootstrap token, which names the host. */
  readonly node?: string | undefined;
}

/** Settings that the rules need: the ServiceAccount of the DaemonSet's agents, and the suffix of the names of their hosts. */
export type JoiningConfig = Pick<OperatorConfig, 'namespaces' | 'hosts'>;

/** Returns the requester with its joining credential. The result is undefined if the requester has no such credential. */
export function joiningOf(
  { spec }: CertificateSigningRequest,
  { namespaces, hosts }: JoiningConfig,
): Joining | undefined {
  const { username = '', groups = [], extra = {} } = spec;
  if (username === `system:serviceaccount:${namespaces.system}:${hosts.serviceAccount}`) {
    const bound = extra[NODE_NAME_EXTRA] ?? [];
    return { kind: 'joining', host: hostOfNode(bound, hosts.nodeNameSuffix), node: bound[0] };
  }
  const names = groups.filter((group) => group.startsWith(NAME_GROUP_PREFIX));
  if (names.length === 0 && !groups.includes(BOOTSTRAP_GROUP)) {
    return undefined;
  }
  const [name = ''] = names;
  return { kind: 'joining', host: names.length === 1 ? name.slice(NAME_GROUP_PREFIX.length) : NOT_FOR_ONE };
}

const NOT_FOR_ONE: CertificateRefusal = {
  reason: 'TokenNotForOneHost',
  message: `A bootstrap token must have exactly one group ${bootstrapGroupOf('NAME')}, for one host. To make a token, run: make host-token NAME=HOST`,
};

const NOT_FOR_A_NODE: CertificateRefusal = {
  reason: 'TokenNotBoundToNode',
  message: 'The token is not bound to a Node. Let the agent join with the projected token of its Pod',
};

/**
 * Returns the name of the host to which an agent's token belongs. The token is bound to the node on which the agent runs. The agent derives
 * the host's name from the name of this node, and this function derives it in the same way. The result is a refusal if the token is not
 * bound to exactly one node.
 */
function hostOfNode(bound: readonly string[], suffix: string): string | CertificateRefusal {
  const [node] = bound;
  return node === undefined || bound.length > 1 ? NOT_FOR_A_NODE : hostNameOf(node, suffix);
}

/**
 * Finds another request that competes with `csr` for the certificate of the same host. It is an approved request, or an older request that
 * is not yet decided. Berth cannot distinguish two requesters with the same credential. Therefore the first requester gets the certificate,
 * and the second one is refused with a message. `others` are the requests of joining hosts for that host name.
 */
export function rivalOf(
  csr: CertificateSigningRequest,
  others: readonly Readonly<CertificateSigningRequest>[],
): Readonly<CertificateSigningRequest> | undefined {
  return others.find(
    (other) =>
      other.metadata.uid !== csr.metadata.uid &&
      other.spec.signerName === CLIENT_SIGNER &&
      !hasCondition(other, 'Denied') &&
      !hasCondition(other, 'Failed') &&
      (hasCondition(other, 'Approved') || ageOf(other) < ageOf(csr)),
  );
}

function hasCondition({ status }: Readonly<CertificateSigningRequest>, wanted: string): boolean {
  return status?.conditions?.some(({ type }) => type === wanted) === true;
}

/**
 * Returns a sort key of a request: its creation time in whole seconds, then its uid. If two requests were created in the same second, the
 * uid decides their order.
 */
function ageOf({ metadata }: Readonly<CertificateSigningRequest>): string {
  return `${metadata.creationTimestamp} ${metadata.uid}`;
}
