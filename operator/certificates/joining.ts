/**
 * Decides which requesters may get a host's first certificate. Each credential that hosts join with is valid for one host name.
 * Pure.
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
/** Prefix of a bootstrap token's group. The name of the token's host follows it. */
const NAME_GROUP_PREFIX = bootstrapGroupOf('');

/** A requester with a credential that hosts join with. */
export interface Joining {
  readonly kind: 'joining';
  /** Name of the host that the credential is for, or a refusal when it is not for exactly one host. */
  readonly host: string | Refusal;
}

/** Settings that the rules need: the account of the DaemonSet's agents, and the suffix of their hosts' names. */
export type JoiningConfig = Pick<OperatorConfig, 'namespaces' | 'hosts'>;

/** Returns the requester with its joining credential; undefined when the requester has no such credential. */
export function joiningOf(
  { spec }: CertificateSigningRequest,
  { namespaces, hosts }: JoiningConfig,
): Joining | undefined {
  const { username = '', groups = [], extra = {} } = spec;
  if (username === `system:serviceaccount:${namespaces.system}:${hosts.serviceAccount}`) {
    return { kind: 'joining', host: hostOfNode(extra[NODE_NAME_EXTRA], hosts.nodeNameSuffix) };
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
 * Returns the host name for the node of a token, built as the agent builds it. Returns a refusal when the token is not bound to
 * one node.
 */
function hostOfNode(bound: readonly string[] = [], suffix: string): string | Refusal {
  const [node] = bound;
  return node === undefined || bound.length > 1 ? NOT_FOR_A_NODE : `${node}${suffix}`.replaceAll('.', '-');
}

/**
 * Finds another request for the same host that may still bring another requester the host's certificate: an approved request, or
 * an older request that is not yet judged. Nobody can tell two holders of the same credential apart, so the first gets the
 * certificate and the second is refused with a message.
 * @param others all requests for that host with a credential that hosts join with
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

/** Returns a sort key: the creation time in whole seconds, then the uid. The order within one second is the same for every reader. */
function ageOf({ metadata }: Readonly<CertificateSigningRequest>): string {
  return `${metadata.creationTimestamp} ${metadata.uid}`;
}
