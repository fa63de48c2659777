/**
 * Who may have which certificate. Pure: a decision from the request, who asks, and the Nodes there are.
 * No stock binding approves these: with the auto-approval that comes with Kubernetes a bootstrap token could take over an existing node.
 */
import { BOOTSTRAP_GROUP } from '../../../api/v1alpha1/names.ts';
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
  | { readonly kind: 'ignore' };

export interface Requester {
  readonly username: string;
  readonly groups: readonly string[];
}

/** The Node name in a request's subject; undefined when it is not a node's. */
export function nodeNameOf(request: SigningRequest): string | undefined {
  const isNode = request.organizations.length === 1 && request.organizations[0] === NODES_GROUP;
  return isNode && request.commonName.startsWith(NODE_USER_PREFIX)
    ? request.commonName.slice(NODE_USER_PREFIX.length)
    : undefined;
}

/** `node` is the Node of the name asked for, read from the server at this moment; undefined when there is none. */
export function decide(
  csr: CertificateSigningRequest,
  request: SigningRequest,
  node: Node | undefined,
): Decision {
  const requester: Requester = { username: csr.spec.username ?? '', groups: csr.spec.groups ?? [] };
  const name = nodeNameOf(request);
  const fromBootstrap = requester.groups.includes(BOOTSTRAP_GROUP);
  const fromNode = requester.groups.includes(NODES_GROUP);
  if (!fromBootstrap && !fromNode) {
    return { kind: 'ignore' };
  }
  if (name === undefined) {
    return deny('InvalidSubject', `the subject must be O=${NODES_GROUP}, CN=${NODE_USER_PREFIX}NAME`);
  }
  if (csr.spec.signerName === SERVING_SIGNER) {
    return decideServing(requester, request, name, node);
  }
  return fromNode ? decideRenewal(requester, request) : decideFirst(name, node);
}

function decideFirst(name: string, node: Node | undefined): Decision {
  return node === undefined
    ? { kind: 'approve', message: `${name} joins as a new host` }
    : deny(
        'NodeExists',
        `a Node named ${name} exists already: delete the Node first (kubectl delete node ${name})`,
      );
}

function decideRenewal(requester: Requester, request: SigningRequest): Decision {
  return requester.username === request.commonName
    ? { kind: 'approve', message: 'renewal by the host itself' }
    : deny(
        'NotItself',
        `${requester.username} may renew its own certificate only, not that of ${request.commonName}`,
      );
}

function decideServing(
  requester: Requester,
  request: SigningRequest,
  name: string,
  node: Node | undefined,
): Decision {
  if (requester.username !== request.commonName) {
    return deny(
      'NotItself',
      `${requester.username} may ask for its own serving certificate only, not for ${request.commonName}`,
    );
  }
  if (node === undefined) {
    return deny('NoSuchNode', `there is no Node ${name} to serve for`);
  }
  const own = new Set((node.status?.addresses ?? []).map(({ address }) => address.toLowerCase()));
  const asked = [...request.dnsNames, ...request.ipAddresses, ...request.others];
  const foreign = asked.filter((address) => !own.has(address.toLowerCase()));
  return foreign.length === 0
    ? { kind: 'approve', message: `serving certificate for ${asked.join(', ')}` }
    : deny('ForeignAddress', `not an address of Node ${name}: ${foreign.join(', ')}`);
}

function deny(reason: string, message: string): Decision {
  return { kind: 'deny', reason, message };
}
