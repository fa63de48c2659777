/** Checks the names, usages and lifetime of a certificate request. All functions are pure. */
import { FIRST_CERTIFICATE_SECONDS, isHostName } from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { SigningRequest } from '../../kube/certificates/request.ts';
import type { CertificateSigningRequest } from '../../kube/core.ts';

export const CLIENT_SIGNER = 'kubernetes.io/kube-apiserver-client-kubelet';
export const SERVING_SIGNER = 'kubernetes.io/kubelet-serving';

export const NODES_GROUP = 'system:nodes';
export const NODE_USER_PREFIX = 'system:node:';

/** Reason for a denial. `reason` is for programs. `message` explains the mistake to people. */
export interface Refusal {
  readonly reason: Reason;
  readonly message: string;
}

type Spec = CertificateSigningRequest['spec'];

/**
 * Usages that a request must have. The signers also accept the usage `key encipherment`. A host must not request that usage, because hosts
 * use their keys only for signatures.
 */
const CLIENT_USAGES = ['client auth', 'digital signature'];
const SERVING_USAGES = ['digital signature', 'server auth'];

/** Returns the Node name in a request's subject. The result is undefined if the subject is not the subject of a host. */
export function nodeNameOf({ organization, commonName }: SigningRequest): string | undefined {
  const name = nodeNameOfUser(commonName);
  return organization === NODES_GROUP && name !== undefined && isHostName(name) ? name : undefined;
}

/** Returns NAME if the user name has the form `system:node:NAME`. For any other user name, the result is undefined. */
export function nodeNameOfUser(user: string): string | undefined {
  const name = user.startsWith(NODE_USER_PREFIX) ? user.slice(NODE_USER_PREFIX.length) : '';
  return name === '' ? undefined : name;
}

/** Returns the reason why a certificate request must be denied. The result is undefined if its names, usages and lifetime are allowed. */
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
        message: `The subject must be O=${NODES_GROUP}, CN=${NODE_USER_PREFIX}NAME. NAME must be a lower-case DNS label of at most 63 characters`,
      }
    : undefined;
}

function refusalOfUsages({ signerName, usages = [] }: Spec): Refusal | undefined {
  const right = signerName === CLIENT_SIGNER ? CLIENT_USAGES : SERVING_USAGES;
  const asked = usages.toSorted();
  return asked.length === right.length && asked.every((usage, index) => usage === right[index])
    ? undefined
    : {
        reason: 'InvalidUsages',
        message: `The usages for ${signerName} must be exactly ${right.join(', ')}, but the request has ${asked.join(', ')}`,
      };
}

function refusalOfNames({ signerName }: Spec, request: SigningRequest): Refusal | undefined {
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
function refusalOfLifetime({ expirationSeconds }: Spec): Refusal | undefined {
  return expirationSeconds !== undefined && expirationSeconds <= FIRST_CERTIFICATE_SECONDS
    ? undefined
    : {
        reason: 'InvalidLifetime',
        message: `The request for the first certificate of a host must have spec.expirationSeconds of at most ${FIRST_CERTIFICATE_SECONDS}, but this request has ${expirationSeconds ?? 'none'}`,
      };
}
