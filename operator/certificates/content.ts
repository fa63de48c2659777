/** Which names, usages and lifetime a certificate request may have. Pure. */
import { FIRST_CERTIFICATE_SECONDS, isHostName } from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { SigningRequest } from '../../kube/certificaterequest.ts';
import type { CertificateSigningRequest } from '../../kube/core.ts';

export const CLIENT_SIGNER = 'kubernetes.io/kube-apiserver-client-kubelet';
export const SERVING_SIGNER = 'kubernetes.io/kubelet-serving';

export const NODES_GROUP = 'system:nodes';
export const NODE_USER_PREFIX = 'system:node:';

/** Why a request is denied: a word for programs, and a sentence that tells people the mistake and the remedy. */
export interface Refusal {
  readonly reason: Reason;
  readonly message: string;
}

type Spec = CertificateSigningRequest['spec'];

/** The signers take `key encipherment` too, which a key for signatures alone has no use for. */
const USAGES: Readonly<Record<string, readonly string[]>> = {
  [CLIENT_SIGNER]: ['client auth', 'digital signature'],
  [SERVING_SIGNER]: ['digital signature', 'server auth'],
};

/** The Node name in a request's subject; undefined when it is not that of a host. */
export function nodeNameOf({ organization, commonName }: SigningRequest): string | undefined {
  const name = nodeNameOfUser(commonName);
  return organization === NODES_GROUP && name !== undefined && isHostName(name) ? name : undefined;
}

/** Undefined when it is not a node's user name. */
export function nodeNameOfUser(user: string): string | undefined {
  const name = user.startsWith(NODE_USER_PREFIX) ? user.slice(NODE_USER_PREFIX.length) : '';
  return name === '' ? undefined : name;
}

/** Undefined when the request may be granted. */
export function refusalOfContent(spec: Spec, request: SigningRequest, isFirst: boolean): Refusal | undefined {
  return (
    refusalOfSubject(request) ??
    refusalOfUsages(spec) ??
    refusalOfNames(spec, request) ??
    (isFirst ? refusalOfLifetime(spec) : undefined)
  );
}

function refusalOfSubject(request: SigningRequest): Refusal | undefined {
  return nodeNameOf(request) === undefined
    ? {
        reason: 'InvalidSubject',
        message: `the subject must be O=${NODES_GROUP}, CN=${NODE_USER_PREFIX}NAME, with a lower-case DNS label of at most 63 characters for NAME`,
      }
    : undefined;
}

function refusalOfUsages({ signerName, usages = [] }: Spec): Refusal | undefined {
  const right = USAGES[signerName] ?? [];
  const asked = usages.toSorted();
  return asked.length === right.length && asked.every((usage, index) => usage === right[index])
    ? undefined
    : {
        reason: 'InvalidUsages',
        message: `spec.usages must be exactly ${right.join(', ')} for ${signerName}, not ${asked.join(', ')}`,
      };
}

function refusalOfNames({ signerName }: Spec, request: SigningRequest): Refusal | undefined {
  const names = [...request.dnsNames, ...request.ipAddresses];
  if (signerName === CLIENT_SIGNER) {
    return names.length === 0
      ? undefined
      : {
          reason: 'InvalidNames',
          message: `a client certificate may have no subject alternative names: ${names.join(', ')}`,
        };
  }
  if (request.dnsNames.length > 0) {
    return {
      reason: 'InvalidNames',
      message: `a serving certificate may be for IP addresses only, not for ${request.dnsNames.join(', ')}`,
    };
  }
  return names.length > 0
    ? undefined
    : {
        reason: 'InvalidNames',
        message: 'a serving certificate must be for at least one address of the host (subjectAltName)',
      };
}

/** The signer gives a year when nothing is asked for. */
function refusalOfLifetime({ expirationSeconds }: Spec): Refusal | undefined {
  return expirationSeconds !== undefined && expirationSeconds <= FIRST_CERTIFICATE_SECONDS
    ? undefined
    : {
        reason: 'InvalidLifetime',
        message: `the first certificate of a host is for ${FIRST_CERTIFICATE_SECONDS} seconds at most, not ${expirationSeconds ?? 'as long as the signer likes'}: set spec.expirationSeconds; the host itself may then ask for longer`,
      };
}
