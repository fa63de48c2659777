import { assert, constantFrom, oneof, option, property, record, subarray } from 'fast-check';
import { describe, expect, it } from 'vitest';
import { InvalidSigningRequestError, type SigningRequest } from '../../kube/certificates/request.ts';
import type { CertificateSigningRequest, Node } from '../../kube/core.ts';
import {
  CLIENT_SIGNER,
  decide,
  decideServing,
  type CertificateDecision,
  type Known,
  nodeToKnow,
  type RequestContent,
  requesterOf,
  rivalOf,
  SERVING_SIGNER,
} from './policy.ts';
import type { Surroundings } from './addresses.ts';
import { parseConfig } from '../config/config.ts';

/** Number of random requests. Several in a hundred of them are approved. */
const OF_WHICH_SOME_ARE_APPROVED = 5_000;

interface Asker {
  username: string;
  groups: string[];
  extra?: Record<string, string[]>;
}

/** Signer of the cluster for serving certificates, in addition to that of Kubernetes. */
const OTHER_SIGNER = 'signer.example/hosts';
const CONFIG = parseConfig({ hosts: { servingSigner: OTHER_SIGNER } }, 'test');

/** Bootstrap token of an earlier version, which is valid for any host name. */
const oldToken: Asker = {
  username: 'system:bootstrap:abcdef',
  groups: ['system:bootstrappers', 'system:bootstrappers:berth'],
};
const bootstrap = tokenFor('new');
const otherBootstrap: Asker = {
  username: 'system:bootstrap:fedcba',
  groups: ['system:bootstrappers', 'system:bootstrappers:worker'],
};
const host = nodeUser('h1');
const kubelet = nodeUser('k1');
/** Nodes of the cluster: a host of Berth, and the Node of a kubelet that claims to be a host. */
const NODES = new Map([
  ['h1', nodeOf('h1', { 'berth.node-restriction.kubernetes.io/host': 'true' }, '127.0.0.1')],
  ['k1', nodeOf('k1', { 'berth.dev/host': 'true' }, '127.0.0.2')],
  [
    'rack1-berth',
    nodeOf('rack1-berth', { 'berth.node-restriction.kubernetes.io/host': 'true' }, '127.0.0.3'),
  ],
  [
    'rack4-berth',
    nodeOf('rack4-berth', { 'berth.node-restriction.kubernetes.io/host': 'true' }, '127.0.0.6'),
  ],
  ['rack2-berth', nodeOf('rack2-berth', { 'berth.dev/host': 'true' }, '127.0.0.4')],
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

function tokenFor(...names: string[]): Asker {
  const groups = names.map((name) => `system:bootstrappers:berth:${name}`);
  return { ...oldToken, groups: ['system:bootstrappers', 'system:bootstrappers:berth', ...groups] };
}

/** Returns a requester with the projected token of an agent's Pod that runs on `nodes`. */
function podOn(...nodes: string[]): Asker {
  return {
    username: 'system:serviceaccount:berth-system:berth-agent',
    groups: ['system:serviceaccounts', 'system:authenticated'],
    extra: nodes.length === 0 ? {} : { 'authentication.kubernetes.io/node-name': nodes },
  };
}

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

/** Judges a request in the same steps as the controller. */
function judge(
  by: Asker,
  parsed: SigningRequest | undefined,
  signerName = CLIENT_SIGNER,
  part: Partial<CertificateSigningRequest['spec']> = {},
  known: Omit<Known, 'node'> = {},
): CertificateDecision {
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
  const requester = requesterOf(csr, CONFIG);
  const reading: RequestContent = parsed ?? new InvalidSigningRequestError('no request');
  if (requester === undefined) {
    return { kind: 'ignore' };
  }
  const node = NODES.get(nodeToKnow(requester, reading) ?? '');
  const decision = decide(requester, csr, reading, { node, ...known });
  return decision.kind === 'serving' ? decideServing(decision, SURROUNDINGS) : decision;
}

/** Returns the reason of a denial, or the kind of another decision. */
function judged(...asked: Parameters<typeof judge>): string {
  const decision = judge(...asked);
  return decision.kind === 'deny' ? decision.reason : decision.kind;
}

describe('rights to certificates', () => {
  it.each([
    ['a new host by its bootstrap token', bootstrap, forNew, 'approve'],
    ["a bootstrap token for a host's name", tokenFor('h1'), request(), 'NodeExists'],
    ["a bootstrap token for another node's name", tokenFor('k1'), forKubelet, 'NodeExists'],
    ['a bootstrap token for no node', bootstrap, request({ commonName: 'admin' }), 'InvalidSubject'],
    [
      'a bootstrap token for a node without a name',
      bootstrap,
      request({ commonName: 'system:node:' }),
      'InvalidSubject',
    ],
    [
      'a bootstrap token with another group',
      bootstrap,
      { ...forNew, organization: 'system:masters' },
      'InvalidSubject',
    ],
    ['a bootstrap token with what cannot be read', bootstrap, undefined, 'InvalidRequest'],
    ['a host for itself', host, request(), 'approve'],
    ['a host for another', host, forNew, 'NotItself'],
    ['a host for a node that is no host', host, forKubelet, 'NotItself'],
    ['a host with what cannot be read', host, undefined, 'InvalidRequest'],
  ] as const)('%s', (_what, by, parsed, expected) => {
    expect(judged(by, parsed)).toBe(expected);
  });

  it.each([
    ['at its own address', host, serving, 'approve'],
    ["at the API server's name", host, { ...serving, dnsNames: ['kubernetes.default.svc'] }, 'InvalidNames'],
    ['for another', host, { ...forNew, ipAddresses: ['127.0.0.1'] }, 'NotItself'],
    ['by a bootstrap token', tokenFor('h1'), serving, 'NotItself'],
  ] as const)('serving %s', (_what, by, parsed, expected) => {
    expect(judged(by, parsed, SERVING_SIGNER)).toBe(expected);
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

  it('a serving certificate without addresses is refused', () => {
    expect(judge(host, request(), SERVING_SIGNER)).toMatchObject({ kind: 'deny', reason: 'InvalidNames' });
  });

  it('says how to handle an existing Node', () => {
    expect(judge(tokenFor('h1'), request())).toMatchObject({
      reason: 'NodeExists',
      message: expect.stringContaining('berth node give-up h1'),
    });
  });
});

describe('credentials of joining hosts are valid for one name', () => {
  const forNode = request({ commonName: 'system:node:node1-example-berth' });

  it.each([
    ['a token for another host', tokenFor('other'), forNew, 'NotItself'],
    ['a token for two hosts', tokenFor('new', 'other'), forNew, 'TokenNotForOneHost'],
    ['a token for any host, as they were', oldToken, forNew, 'TokenNotForOneHost'],
    ['the token of a Pod on another node', podOn('node2'), forNode, 'NotItself'],
    ["the token of a Pod for its node's own name", podOn('new'), forNew, 'NotItself'],
    ['a token of the account that no node is bound to', podOn(), forNode, 'TokenNotBoundToNode'],
    ['a token that names two nodes', podOn('node1.example', 'node2'), forNode, 'TokenNotBoundToNode'],
  ])('%s is denied', (_what, by, parsed, reason) => {
    expect(judge(by, parsed)).toMatchObject({ kind: 'deny', reason });
  });

  it('the token of a Pod is for the host of its node, whose dots become dashes', () => {
    expect(judge(podOn('node1.example'), forNode).kind).toBe('approve');
  });

  it.each(['node1-example', 'node1.example'])(
    'is denied to %s while another Node has the same name of a host, and the message names both',
    (node) => {
      const namesakes = ['node1-example', 'node1.example'];
      const [other] = namesakes.filter((name) => name !== node);
      const decision = judge(podOn(node), forNode, CLIENT_SIGNER, {}, { namesakes });
      expect(decision).toMatchObject({
        reason: 'HostNameShared',
        message: expect.stringContaining(`${node} and ${other} would share`),
      });
      expect(judge(podOn(node), forNode, CLIENT_SIGNER, {}, { namesakes: [node] }).kind).toBe('approve');
    },
  );

  it('the account of the same name in another namespace is left to other approvers', () => {
    const by = { ...podOn('node1.example'), username: 'system:serviceaccount:default:berth-agent' };
    expect(judge(by, forNode)).toEqual({ kind: 'ignore' });
  });

  it('says how to make a token for one host', () => {
    expect(judge(oldToken, forNew)).toMatchObject({
      message: expect.stringContaining('make host-token NAME='),
    });
  });

  it('is denied while another request for the name is open, with the next step', () => {
    expect(judge(bootstrap, forNew, CLIENT_SIGNER, {}, { rival: 'first' })).toMatchObject({
      reason: 'RequestOpen',
      message: expect.stringContaining('kubectl delete csr first'),
    });
  });
});

describe("a serving certificate of another signer, by the token of an agent's Pod", () => {
  const forRack1 = request({ commonName: 'system:node:rack1-berth', ipAddresses: ['127.0.0.3'] });
  const forRack2 = request({ commonName: 'system:node:rack2-berth', ipAddresses: ['127.0.0.4'] });
  const forRack3 = request({ commonName: 'system:node:rack3-berth', ipAddresses: ['127.0.0.5'] });

  it.each([
    ["is approved for the host of the Pod's node", podOn('rack1'), forRack1, 'approve'],
    ['is denied for another host', podOn('rack4'), forRack1, 'NotItself'],
    [
      'is denied for another address',
      podOn('rack1'),
      { ...forRack1, ipAddresses: ['127.0.0.1'] },
      'ForeignAddress',
    ],
    ['is denied without an address', podOn('rack1'), { ...forRack1, ipAddresses: [] }, 'InvalidNames'],
    ['is denied to a token that is bound to no node', podOn(), forRack1, 'TokenNotBoundToNode'],
    ['is left to others before the Node is marked as a host', podOn('rack2'), forRack2, 'ignore'],
    ['waits for the Node', podOn('rack3'), forRack3, 'wait'],
    ['is denied to a bootstrap token', tokenFor('rack1-berth'), forRack1, 'NotItself'],
    ['is approved to a host with a certificate', nodeUser('rack1-berth'), forRack1, 'approve'],
  ] as const)('%s', (_what, by, parsed, expected) => {
    expect(judged(by, parsed, OTHER_SIGNER)).toBe(expected);
  });

  it('is denied while another Node has the same name of a host', () => {
    const known = { namesakes: ['rack1', 'rack.1'] };
    expect(judged(podOn('rack1'), forRack1, OTHER_SIGNER, {}, known)).toBe('HostNameShared');
  });

  it('comes only from the named signer', () => {
    expect(judged(podOn('rack1'), forRack1, SERVING_SIGNER)).toBe('NotItself');
  });
});

describe('of two requests for a name, the open one is', () => {
  const made = (uid: string, second: number, condition?: string): CertificateSigningRequest => ({
    apiVersion: 'certificates.k8s.io/v1',
    kind: 'CertificateSigningRequest',
    metadata: { name: uid, uid, creationTimestamp: `2026-01-01T00:00:0${second}Z` },
    spec: { request: '', signerName: CLIENT_SIGNER },
    ...(condition !== undefined && {
      status: { conditions: [{ type: condition, status: 'True', reason: 'Any', message: '' }] },
    }),
  });

  it.each([
    ['none but itself', made('b', 2), [made('b', 2)], undefined],
    ['an older one', made('b', 2), [made('a', 1)], 'a'],
    ['not a younger one', made('b', 1), [made('a', 2)], undefined],
    ['a younger one that is approved', made('b', 1), [made('a', 2, 'Approved')], 'a'],
    ['not one that was denied', made('b', 2), [made('a', 1, 'Denied')], undefined],
    ['not one that failed', made('b', 2), [{ ...made('a', 1, 'Failed') }], undefined],
    ['one of two in the same second', made('b', 1), [made('a', 1)], 'a'],
    ['and not the other', made('a', 1), [made('b', 1)], undefined],
  ])('%s', (_what, csr, others, rival) => {
    expect(rivalOf(csr, others)?.metadata.name).toBe(rival);
  });
});

describe('requests that are left to other approvers', () => {
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

describe('any request', () => {
  const nodes = constantFrom('h1', 'k1', 'new');
  const asker = oneof(
    constantFrom(bootstrap, otherBootstrap, oldToken, tokenFor('h1'), podOn('new'), podOn('h1')),
    nodes.map(nodeUser),
    record<Asker>({
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

  it('is judged only if it comes from a host, or from a bootstrap token for hosts', () => {
    assert(
      property(asker, asked, signer, (by, parsed, signerName) => {
        const isHost = by.groups.includes('system:nodes') && by.username === 'system:node:h1';
        const isOurs = isHost || by.extra !== undefined || by.groups.includes('system:bootstrappers:berth');
        const isJudged = ['approve', 'deny'].includes(judge(by, parsed, signerName).kind);
        expect(isJudged).toSatisfy((judged: boolean) => isOurs || !judged);
      }),
    );
  });

  it('is approved only for a new name by its bootstrap token, or for a host itself at its own address', () => {
    const approved = { byToken: 0, asClient: 0, asServer: 0 };
    const often = oneof(asked, constantFrom(request(), forKubelet, forNew, serving));
    assert(
      property(asker, often, signer, (by, parsed, signerName) => {
        if (judge(by, parsed, signerName).kind !== 'approve') {
          return;
        }
        expect(parsed?.organization).toBe('system:nodes');
        const isServing = signerName === SERVING_SIGNER;
        expect(parsed).toMatchObject({ dnsNames: [], ipAddresses: isServing ? ['127.0.0.1'] : [] });
        const isNew = by === bootstrap && parsed?.commonName === 'system:node:new' && !isServing;
        const isItself = by.username === 'system:node:h1' && parsed?.commonName === by.username;
        expect(isNew || isItself).toBe(true);
        approved[isNew ? 'byToken' : isServing ? 'asServer' : 'asClient'] += 1;
      }),
      { numRuns: OF_WHICH_SOME_ARE_APPROVED },
    );
    expect(Math.min(...Object.values(approved)), 'each right was used').toBeGreaterThan(0);
  });
});
