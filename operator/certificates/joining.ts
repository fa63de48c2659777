/**
 * Decides which requesters are allowed to get the first certificate of a host. Each credential with which a host joins the cluster is valid
 * for one host name. All functions are pure.
 */
import { BOOTSTRAP_GROUP, bootstrapGroupOf } from '../../api/v1alpha1/names.ts';
import type { CertificateSigningRequest } from '../../kube/core.ts';
import type { OperatorConfig } from '../config/config.ts';
import { CLIENT_SIGNER, type Refusal } from './content.ts';

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
export interface Joining {
  readonly kind: 'joining';
  /** Name of the host for which the credential is valid. The value is a refusal if the credential is not valid for exactly one host. */
  readonly host: string | Refusal;
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

const NOT_FOR_ONE: Refusal = {
  reason: 'TokenNotForOneHost',
  message: `A bootstrap token must have exactly one group ${bootstrapGroupOf('NAME')}, for one host. To make a token, run: make host-token NAME=HOST`,
};

const NOT_FOR_A_NODE: Refusal = {
  reason: 'TokenNotBoundToNode',
  message: 'The token is not bound to a Node. Let the agent join with the projected token of its Pod',
};

/**
 * Returns the name of the host to which an agent's token belongs. The token is bound to the node on which the agent runs. The agent derives
 * the host's name from the name of this node, and this function derives it in the same way. The result is a refusal if the token is not
 * bound to exactly one node.
 */
function hostOfNode(bound: readonly string[], suffix: string): string | Refusal {
  const [node] = bound;
  return node === undefined || bound.length > 1 ? NOT_FOR_A_NODE : hostNameOf(node, suffix);
}

/**
 * Returns the name of the host on the computer of a kubelet's Node. Nodes whose names differ only in dots and hyphens have the same host
 * name, and none of their agents gets a first certificate.
 */
export function hostNameOf(node: string, suffix: string): string {
  return `${node}${suffix}`.replaceAll('.', '-');
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
