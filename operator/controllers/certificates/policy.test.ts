import { describe, expect, it } from 'vitest';
import type { SigningRequest } from '../../../kube/certificates.ts';
import type { CertificateSigningRequest, Node } from '../../../kube/core.ts';
import { CLIENT_SIGNER, decide, SERVING_SIGNER } from './policy.ts';

const bootstrap = {
  username: 'system:bootstrap:abcdef',
  groups: ['system:bootstrappers', 'system:bootstrappers:berth'],
};
const nodeUser = { username: 'system:node:h1', groups: ['system:nodes', 'system:authenticated'] };
const node: Node = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: 'h1' },
  status: { addresses: [{ type: 'InternalIP', address: '127.0.0.1' }] },
};

function csr(
  by: { username: string; groups: string[] },
  signerName = CLIENT_SIGNER,
): CertificateSigningRequest {
  return {
    apiVersion: 'certificates.k8s.io/v1',
    kind: 'CertificateSigningRequest',
    metadata: { name: 'r' },
    spec: { request: '', signerName, ...by },
  };
}

function request(part: Partial<SigningRequest> = {}): SigningRequest {
  return {
    commonName: 'system:node:h1',
    organizations: ['system:nodes'],
    dnsNames: [],
    ipAddresses: [],
    others: [],
    ...part,
  };
}

describe('who may have which certificate', () => {
  it.each([
    ['a new host by its bootstrap token', csr(bootstrap), request(), undefined, 'approve'],
    ["a bootstrap token for an existing node's name", csr(bootstrap), request(), node, 'deny'],
    ['a host for itself', csr(nodeUser), request(), node, 'approve'],
    ['a host for another', csr(nodeUser), request({ commonName: 'system:node:h2' }), undefined, 'deny'],
    [
      'a bootstrap token for something that is no node',
      csr(bootstrap),
      request({ commonName: 'admin' }),
      undefined,
      'deny',
    ],
    [
      'a bootstrap token with another group',
      csr(bootstrap),
      request({ organizations: ['system:nodes', 'system:masters'] }),
      undefined,
      'deny',
    ],
    [
      'somebody else',
      csr({ username: 'jane', groups: ['system:authenticated'] }),
      request(),
      undefined,
      'ignore',
    ],
    [
      'serving at its own address',
      csr(nodeUser, SERVING_SIGNER),
      request({ ipAddresses: ['127.0.0.1'] }),
      node,
      'approve',
    ],
    [
      "serving at the API server's name",
      csr(nodeUser, SERVING_SIGNER),
      request({ ipAddresses: ['127.0.0.1'], dnsNames: ['kubernetes.default.svc'] }),
      node,
      'deny',
    ],
    [
      'serving by a bootstrap token',
      csr(bootstrap, SERVING_SIGNER),
      request({ ipAddresses: ['127.0.0.1'] }),
      node,
      'deny',
    ],
  ] as const)('%s', (_what, asked, parsed, existing, expected) => {
    expect(decide(asked, parsed, existing).kind).toBe(expected);
  });

  it('says what to do about an existing node', () => {
    expect(decide(csr(bootstrap), request(), node)).toMatchObject({
      reason: 'NodeExists',
      message: expect.stringContaining('kubectl delete node h1'),
    });
  });
});
