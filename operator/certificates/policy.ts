/**
 * Decides whether a requester gets the requested certificate. Berth does not use the automatic approval of Kubernetes, because somebody
 * with a bootstrap token could then get the certificate of an existing node. Berth decides only about requests of its hosts. A person or
 * another approver decides about requests of the cluster's other nodes. All functions are pure.
 */
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { InvalidSigningRequestError, type SigningRequest } from '../../kube/certificates/request.ts';
import type { CertificateSigningRequest, Node } from '../../kube/core.ts';
import { isHost } from '../host/observe.ts';
import { refusalOfAddresses, type Surroundings } from './addresses.ts';
import { type Joining, type JoiningConfig, joiningOf } from './joining.ts';
import {
  CLIENT_SIGNER,
  NODE_USER_PREFIX,
  nodeNameOf,
  nodeNameOfUser,
  NODES_GROUP,
  type Refusal,
  refusalOfContent,
} from './content.ts';

export type Decision =
  | { readonly kind: 'approve'; readonly message: string }
  | ({ readonly kind: 'deny' } & Refusal)
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
export type Reading = SigningRequest | InvalidSigningRequestError;

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
export function nodeToKnow(requester: Requester, request: Reading): string | undefined {
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
  request: Reading,
  known: Known,
): Decision | ServingQuestion {
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
): Decision | ServingQuestion {
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
): Decision | ServingQuestion {
  const { node } = known;
  if (node === undefined) {
    return { kind: 'wait' };
  }
  return refusalOfNamesakes(kubelet, name, known) ?? { kind: 'serving', addresses, node };
}

function notItself(rule: string, name: string): Decision {
  return deny('NotItself', `${rule}, but the request is for the certificate of ${NODE_USER_PREFIX}${name}`);
}

function decideFirst(
  { host, node: kubelet }: Joining,
  name: string,
  known: Known,
  signerName: string,
): Decision {
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
  const approval: Decision =
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
): Decision | undefined {
  const others = kubelet === undefined ? [] : namesakes.filter((other) => other !== kubelet);
  return others.length === 0
    ? undefined
    : deny(
        'HostNameShared',
        `The Nodes ${kubelet} and ${others.join(', ')} would share the host ${name}, because dots become hyphens in the names of hosts. Rename one of them, or take it out of agent.nodeSelector and delete its Node`,
      );
}

export function decideServing({ addresses, node }: ServingQuestion, surroundings: Surroundings): Decision {
  const refusal = refusalOfAddresses(addresses, node, surroundings);
  return refusal === undefined
    ? { kind: 'approve', message: `The host is allowed to serve at ${addresses.join(', ')}` }
    : { kind: 'deny', ...refusal };
}

function deny(reason: Reason, message: string): Decision {
  return { kind: 'deny', reason, message };
}
