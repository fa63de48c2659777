import { assert, constantFrom, oneof, option, property, record, subarray } from 'fast-check';
import { describe, expect, it } from 'vitest';
import { InvalidSigningRequestError, type SigningRequest } from '../../../kube/certificaterequest.ts';
import type { CertificateSigningRequest, Node } from '../../../kube/core.ts';
import { CLIENT_SIGNER, SERVING_SIGNER } from './content.ts';
import type { Surroundings } from './addresses.ts';
import { decide, decideServing, type Decision, nodeToKnow, type Reading, requesterOf } from './policy.ts';

/** About one in 200 is. */
const OF_WHICH_SOME_ARE_APPROVED = 5_000;

interface Asker {
  username: string;
  groups: string[];
}

const bootstrap: Asker = {
  username: 'system:bootstrap:abcdef',
  groups: ['system:bootstrappers', 'system:bootstrappers:berth'],
};
const otherBootstrap: Asker = {
  username: 'system:bootstrap:fedcba',
  groups: ['system:bootstrappers', 'system:bootstrappers:worker'],
};
const host = nodeUser('h1');
const kubelet = nodeUser('k1');
/** What is in the cluster: a host of ours, and a node with a kubelet that calls itself one. */
const NODES = new Map([
  ['h1', nodeOf('h1', { 'berth.node-restriction.kubernetes.io/host': 'true' }, '127.0.0.1')],
  ['k1', nodeOf('k1', { 'berth.dev/host': 'true' }, '127.0.0.2')],
]);

const SURROUNDINGS: Surroundings = {
  nodesAt: (address) =>
    [...NODES.keys()].filter((name) =>
      NODES.get(name)?.status?.addresses?.some((one) => one.address === address),
    ),
  apiServer: [],
  serviceCIDRs: [],
  settings: { addressCIDRs: ['127.0.0.0/8'], nodeNameSuffix: '-berth' },
};

function nodeUser(name: string): Asker {
  return { username: `system:node:${name}`, groups: ['system:nodes', 'system:authenticated'] };
}

function nodeOf(name: string, labels: Record<string, string>, address: string): Node {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name, labels },
    status: { addresses: [{ type: 'InternalIP', address }] },
  };
}

function request(part: Partial<SigningRequest> = {}): SigningRequest {
  return {
    commonName: 'system:node:h1',
    organization: 'system:nodes',
    dnsNames: [],
    ipAddresses: [],
    ...part,
  };
}

const forKubelet = request({ commonName: 'system:node:k1' });
const forNew = request({ commonName: 'system:node:new' });
const serving = request({ ipAddresses: ['127.0.0.1'] });

/** As the controller goes about it. */
function judge(
  by: Asker,
  parsed: SigningRequest | undefined,
  signerName = CLIENT_SIGNER,
  part: Partial<CertificateSigningRequest['spec']> = {},
): Decision {
  const csr: CertificateSigningRequest = {
    apiVersion: 'certificates.k8s.io/v1',
    kind: 'CertificateSigningRequest',
    metadata: { name: 'r' },
    spec: {
      request: '',
      signerName,
      usages: ['digital signature', signerName === CLIENT_SIGNER ? 'client auth' : 'server auth'],
      expirationSeconds: 3600,
      ...by,
      ...part,
    },
  };
  const requester = requesterOf(csr);
  const reading: Reading = parsed ?? new InvalidSigningRequestError('no request');
  if (requester === undefined) {
    return { kind: 'ignore' };
  }
  const decision = decide(requester, csr, reading, NODES.get(nodeToKnow(requester, reading) ?? ''));
  return decision.kind === 'serving' ? decideServing(decision, SURROUNDINGS) : decision;
}

describe('who may have which certificate', () => {
  it.each([
    ['a new host by its bootstrap token', bootstrap, forNew, 'approve'],
    ["a bootstrap token for a host's name", bootstrap, request(), 'deny'],
    ["a bootstrap token for another node's name", bootstrap, forKubelet, 'deny'],
    ['a bootstrap token for no node', bootstrap, request({ commonName: 'admin' }), 'deny'],
    [
      'a bootstrap token for a node without a name',
      bootstrap,
      request({ commonName: 'system:node:' }),
      'deny',
    ],
    [
      'a bootstrap token with another group',
      bootstrap,
      { ...forNew, organization: 'system:masters' },
      'deny',
    ],
    ['a bootstrap token with what cannot be read', bootstrap, undefined, 'deny'],
    ['a host for itself', host, request(), 'approve'],
    ['a host for another', host, forNew, 'deny'],
    ['a host for a node that is no host', host, forKubelet, 'deny'],
    ['a host with what cannot be read', host, undefined, 'deny'],
  ] as const)('%s', (_what, by, parsed, expected) => {
    expect(judge(by, parsed).kind).toBe(expected);
  });

  it.each([
    ['at its own address', host, serving, 'approve'],
    ["at the API server's name", host, { ...serving, dnsNames: ['kubernetes.default.svc'] }, 'deny'],
    ['for another', host, { ...forNew, ipAddresses: ['127.0.0.1'] }, 'deny'],
    ['by a bootstrap token', bootstrap, serving, 'deny'],
  ] as const)('serving %s', (_what, by, parsed, expected) => {
    expect(judge(by, parsed, SERVING_SIGNER).kind).toBe(expected);
  });

  it.each([
    ['a name in capitals', bootstrap, request({ commonName: 'system:node:New' }), 'InvalidSubject', {}],
    ['a name with a comma', bootstrap, request({ commonName: 'system:node:new,a' }), 'InvalidSubject', {}],
    ['a name with a slash', bootstrap, request({ commonName: 'system:node:new/a' }), 'InvalidSubject', {}],
    [
      'a name of 64 letters',
      bootstrap,
      request({ commonName: `system:node:${'a'.repeat(64)}` }),
      'InvalidSubject',
      {},
    ],
    ['names of a client', host, serving, 'InvalidNames', {}],
    [
      'usages of a server',
      host,
      request(),
      'InvalidUsages',
      { usages: ['digital signature', 'server auth'] },
    ],
    ['no usages', host, request(), 'InvalidUsages', { usages: [] }],
    [
      'one usage more',
      host,
      request(),
      'InvalidUsages',
      { usages: ['digital signature', 'client auth', 'server auth'] },
    ],
    ['a first certificate of a day', bootstrap, forNew, 'InvalidLifetime', { expirationSeconds: 86_400 }],
  ] as [string, Asker, SigningRequest, string, Partial<CertificateSigningRequest['spec']>][])(
    '%s is refused',
    (_what, by, parsed, reason, part) => {
      expect(judge(by, parsed, CLIENT_SIGNER, part)).toMatchObject({ kind: 'deny', reason });
    },
  );

  it('a serving certificate for nothing is refused', () => {
    expect(judge(host, request(), SERVING_SIGNER)).toMatchObject({ kind: 'deny', reason: 'InvalidNames' });
  });

  it('says what to do about an existing node', () => {
    expect(judge(bootstrap, request())).toMatchObject({
      reason: 'NodeExists',
      message: expect.stringContaining('kubectl delete node h1'),
    });
  });
});

describe('what is left to others', () => {
  it.each([
    [
      "a kubelet's serving certificate",
      kubelet,
      { ...forKubelet, ipAddresses: ['127.0.0.2'] },
      SERVING_SIGNER,
    ],
    ['a kubelet that serves elsewhere', kubelet, { ...forKubelet, dnsNames: ['k1.example'] }, SERVING_SIGNER],
    ["a kubelet's renewal", kubelet, forKubelet, CLIENT_SIGNER],
    ["a kubelet that asks for a host's", kubelet, request(), CLIENT_SIGNER],
    ["a kubelet's with what cannot be read", kubelet, undefined, CLIENT_SIGNER],
    ["a kubelet that joins by a bootstrap token of others'", otherBootstrap, forNew, CLIENT_SIGNER],
    ['somebody else', { username: 'jane', groups: ['system:authenticated'] }, request(), CLIENT_SIGNER],
    ['one in the group of nodes who is none', { ...kubelet, username: 'jane' }, request(), CLIENT_SIGNER],
  ])('%s', (_what, by, parsed, signerName) => {
    expect(judge(by, parsed, signerName)).toEqual({ kind: 'ignore' });
  });

  it.each([CLIENT_SIGNER, SERVING_SIGNER])('waits for the Node of one that has none: %s', (signerName) => {
    expect(judge(nodeUser('new'), forNew, signerName)).toEqual({ kind: 'wait' });
  });
});

describe('whatever is asked', () => {
  const nodes = constantFrom('h1', 'k1', 'new');
  const asker = oneof(
    constantFrom(bootstrap, otherBootstrap),
    nodes.map(nodeUser),
    record({
      username: constantFrom('jane', 'system:node:', 'system:node:h1', 'system:node:k1'),
      groups: subarray(['system:nodes', 'system:bootstrappers:berth', 'system:authenticated']),
    }),
  );
  const asked = option(
    record({
      commonName: oneof(
        nodes.map((name) => `system:node:${name}`),
        constantFrom('admin', 'system:node:'),
      ),
      organization: constantFrom('system:nodes', 'system:masters'),
      dnsNames: subarray(['h1', 'kubernetes.default.svc']),
      ipAddresses: subarray(['127.0.0.1', '127.0.0.2']),
    }),
    { nil: undefined },
  );
  const signer = constantFrom(CLIENT_SIGNER, SERVING_SIGNER);

  it('only requests of hosts and of bootstrap tokens for hosts are judged', () => {
    assert(
      property(asker, asked, signer, (by, parsed, signerName) => {
        const isHost = by.groups.includes('system:nodes') && by.username === 'system:node:h1';
        const isOurs = isHost || by.groups.includes('system:bootstrappers:berth');
        const isJudged = ['approve', 'deny'].includes(judge(by, parsed, signerName).kind);
        expect(isJudged).toSatisfy((judged: boolean) => isOurs || !judged);
      }),
    );
  });

  it('approved is only a new name by a bootstrap token, and a host itself at its own addresses', () => {
    assert(
      property(asker, asked, signer, (by, parsed, signerName) => {
        if (judge(by, parsed, signerName).kind !== 'approve') {
          return;
        }
        expect(parsed?.organization).toBe('system:nodes');
        if (signerName === SERVING_SIGNER) {
          expect(parsed).toMatchObject({ dnsNames: [] });
          expect(parsed?.ipAddresses).not.toContain('127.0.0.2');
        }
        const isNew = parsed?.commonName === 'system:node:new' && signerName === CLIENT_SIGNER;
        const isItself = by.username === 'system:node:h1' && parsed?.commonName === by.username;
        expect(isNew || isItself).toBe(true);
      }),
      { numRuns: OF_WHICH_SOME_ARE_APPROVED },
    );
  });
});
