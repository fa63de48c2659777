/**
 * Who may have which certificate. Pure: a decision from the request, who asks, and the Node it turns on.
 * No stock binding approves these: with the auto-approval that comes with Kubernetes a bootstrap token could take over an existing node.
 * Only what Berth's hosts ask for is judged: other nodes of the cluster have an approver of their own, or a person.
 */
import { BOOTSTRAP_GROUP, HOST_KEY, HOST_VALUE } from '../../../api/v1alpha1/names.ts';
import type { SigningRequest } from '../../../kube/certificates.ts';
import type { CertificateSigningRequest, Node } from '../../../kube/core.ts';

export const CLIENT_SIGNER = 'kubernetes.io/kube-apiserver-client-kubelet';
export const SERVING_SIGNER = 'kubernetes.io/kubelet-serving';

export const NODES_GROUP = 'system:nodes';
export const NODE_USER_PREFIX = 'system:node:';

export type Decision =
  | { readonly kind: 'approve'; readonly message: string }
  | { readonly kind: 'deny'; readonly reason: string; readonly message: string }
  /** Not ours to judge: not a request of a host of ours. */
  | { readonly kind: 'ignore' }
  /** Of a node that has no Node at the moment, so that nobody can tell whose it is; a host makes its own again at once. */
  | { readonly kind: 'wait' };

/** Who asks, as far as Berth may have to do with it. */
export type Requester =
  /** Somebody with a bootstrap token for Berth's hosts. */
  | { readonly kind: 'bootstrap' }
  /** The node of this name; whether it is a host, only its Node can tell. */
  | { readonly kind: 'node'; readonly name: string };

/** Undefined when whoever asks is neither. */
export function requesterOf({ spec }: CertificateSigningRequest): Requester | undefined {
  const { username = '', groups = [] } = spec;
  if (groups.includes(NODES_GROUP)) {
    const name = nodeName(username);
    return name === undefined ? undefined : { kind: 'node', name };
  }
  return groups.includes(BOOTSTRAP_GROUP) ? { kind: 'bootstrap' } : undefined;
}

/** The Node name in a request's subject; undefined when it is not a node's. */
export function nodeNameOf(request: SigningRequest): string | undefined {
  const isNode = request.organizations.length === 1 && request.organizations[0] === NODES_GROUP;
  return isNode ? nodeName(request.commonName) : undefined;
}

function nodeName(user: string): string | undefined {
  const name = user.startsWith(NODE_USER_PREFIX) ? user.slice(NODE_USER_PREFIX.length) : '';
  return name === '' ? undefined : name;
}

/** Whose Node a decision turns on: a node's own, or the one that a bootstrap token is to become. */
export function nodeToKnow(requester: Requester, request: SigningRequest | undefined): string | undefined {
  if (requester.kind === 'node') {
    return requester.name;
  }
  return request === undefined ? undefined : nodeNameOf(request);
}

/**
 * `request` is undefined when it cannot be read. `node` is the one of {@link nodeToKnow}, read from the server at this
 * moment; undefined when there is none.
 */
export function decide(
  requester: Requester,
  { spec }: CertificateSigningRequest,
  request: SigningRequest | undefined,
  node: Node | undefined,
): Decision {
  if (requester.kind === 'node' && node === undefined) {
    return { kind: 'wait' };
  }
  if (requester.kind === 'node' && !isHost(node)) {
    return { kind: 'ignore' };
  }
  return request === undefined
    ? deny('InvalidRequest', 'the signing request cannot be read')
    : decideOurs(requester, spec, request, node);
}

function decideOurs(
  requester: Requester,
  { signerName, username }: CertificateSigningRequest['spec'],
  request: SigningRequest,
  node: Node | undefined,
): Decision {
  const name = nodeNameOf(request);
  if (name === undefined) {
    return deny('InvalidSubject', `the subject must be O=${NODES_GROUP}, CN=${NODE_USER_PREFIX}NAME`);
  }
  const isOwn = requester.kind === 'node' && requester.name === name;
  if (signerName === SERVING_SIGNER) {
    return isOwn
      ? decideServing(request, name, node)
      : notItself(`${username} may ask for its own serving certificate only`, name);
  }
  if (requester.kind === 'bootstrap') {
    return decideFirst(name, node);
  }
  return isOwn
    ? { kind: 'approve', message: 'renewal by the host itself' }
    : notItself(`${username} may renew its own certificate only`, name);
}

function isHost(node: Node | undefined): boolean {
  return node?.metadata.labels?.[HOST_KEY] === HOST_VALUE;
}

function notItself(rule: string, name: string): Decision {
  return deny('NotItself', `${rule}, not that of ${NODE_USER_PREFIX}${name}`);
}

function decideFirst(name: string, node: Node | undefined): Decision {
  return node === undefined
    ? { kind: 'approve', message: `${name} joins as a new host` }
    : deny(
        'NodeExists',
        `a Node named ${name} exists already: delete the Node first (kubectl delete node ${name})`,
      );
}

function decideServing(request: SigningRequest, name: string, node: Node | undefined): Decision {
  const own = new Set((node?.status?.addresses ?? []).map(({ address }) => address.toLowerCase()));
  const asked = [...request.dnsNames, ...request.ipAddresses, ...request.others];
  const foreign = asked.filter((address) => !own.has(address.toLowerCase()));
  return foreign.length === 0
    ? { kind: 'approve', message: `serving certificate for ${asked.join(', ')}` }
    : deny('ForeignAddress', `not an address of Node ${name}: ${foreign.join(', ')}`);
}

function deny(reason: string, message: string): Decision {
  return { kind: 'deny', reason, message };
}
