/** Who may ask for a host's first certificate: each credential that hosts join with is good for one name. Pure. */
import { BOOTSTRAP_GROUP, bootstrapGroupOf } from '../../api/v1alpha1/names.ts';
import type { CertificateSigningRequest } from '../../kube/core.ts';
import type { OperatorConfig } from '../config/config.ts';
import { CLIENT_SIGNER, type Refusal } from './content.ts';

/** The API server's own word for the node that a projected token is bound to. No client can set it. */
const NODE_NAME_EXTRA = 'authentication.kubernetes.io/node-name';
/** Before the name of the host that a bootstrap token is for. */
const NAME_GROUP_PREFIX = bootstrapGroupOf('');

/** A requester with a credential that hosts join with. */
export interface Joining {
  readonly kind: 'joining';
  /** The one host that the credential is for, or why there is none. */
  readonly host: string | Refusal;
}

/** The settings of the rules: the account of the DaemonSet's agents, and the suffix of their hosts' names. */
export type JoiningConfig = Pick<OperatorConfig, 'namespaces' | 'hosts'>;

/** Undefined when the requester has no credential that hosts join with. */
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
  message: `a bootstrap token of hosts is for one host, named by its group ${bootstrapGroupOf('NAME')}: make one with "make host-token NAME=…" (docs/operate/hosts.md)`,
};

const NOT_FOR_A_NODE: Refusal = {
  reason: 'TokenNotBoundToNode',
  message:
    "the token of the agent's ServiceAccount is bound to no node: agents in Pods join with the projected token of their Pod",
};

/** The same name that the agent makes from its node's name. */
function hostOfNode(bound: readonly string[] = [], suffix: string): string | Refusal {
  const [node] = bound;
  return node === undefined || bound.length > 1 ? NOT_FOR_A_NODE : `${node}${suffix}`.replaceAll('.', '-');
}

/**
 * Another request of the same host's that may still bring somebody its certificate: approved already, or older and not
 * judged yet. Two holders of one credential cannot be told apart, so the first has it and the second is told.
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

/** Sorts by time of creation, which has whole seconds, and in an order that is the same for everybody within one. */
function ageOf({ metadata }: Readonly<CertificateSigningRequest>): string {
  return `${metadata.creationTimestamp} ${metadata.uid}`;
}
