/**
 * Certificate requests that can be read in two ways, or that ask for addresses of others. A real API server, the operator, and the signer
 * of the controller-manager answer them. Go reads the content of requests and certificates.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { HOST_MARK, HOST_VALUE } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import {
  CERTIFICATE_SIGNING_REQUESTS,
  type CertificateSigningRequest,
  NODES,
  SERVICES,
} from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { readSigningRequest, TAGS } from '../../kube/certificates/request.ts';
import { ApiError } from '../../kube/errors.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { tried } from './support/attempts.ts';
import { GO_BUILD_MILLISECONDS, GoParser } from './support/goparser.ts';
import { asNode, clientOf } from './support/identities.ts';
import * as make from './support/requests.ts';

const STEP = { deadlineMilliseconds: 60_000 };
const HOUR_SECONDS = 3_600;
const CLIENT = 'kubernetes.io/kube-apiserver-client-kubelet';
const SERVING = 'kubernetes.io/kubelet-serving';
const CLIENT_USAGES = ['digital signature', 'client auth'];
const SERVING_USAGES = ['digital signature', 'server auth'];
/** Name of a Node whose host has been silent for long. A certificate with this name could read the Secrets of its Pods. */
const VICTIM = 'victim';
const HOST = 'hostile-host';
const HOST_ADDRESS = '127.0.0.66';
const NEIGHBOUR_ADDRESS = '127.0.0.77';

let cluster: Cluster;
let go: GoParser;
let host: KubeClient;

beforeAll(async () => {
  [go, cluster] = await Promise.all([
    GoParser.build(),
    startCluster({ name: `hostile-certificates-${process.pid}`, operator: true }),
  ]);
  await cluster.client().create(NODES, { metadata: { name: VICTIM } });
  await cluster.client().create(NODES, {
    metadata: { name: HOST, labels: { [HOST_MARK]: HOST_VALUE } },
  });
  await cluster.client().create(NODES, {
    metadata: { name: 'neighbour' },
    status: { addresses: [{ type: 'InternalIP', address: NEIGHBOUR_ADDRESS }] },
  });
  host = await asNode(cluster, HOST);
  await publish([HOST_ADDRESS]);
}, GO_BUILD_MILLISECONDS);

afterAll(async () => {
  await cluster?.stop();
  await go?.[Symbol.asyncDispose]();
});

/** Writes addresses into the Node's status, as the host's own agent does. */
async function publish(addresses: readonly string[]): Promise<void> {
  const status = { addresses: addresses.map((address) => ({ type: 'InternalIP', address })) };
  await host.mergePatch(NODES, { name: HOST }, { status }, { subresource: 'status' });
}

/** Returns a client with the credentials with which a host of this name joins. */
async function joiner(name: string): Promise<KubeClient> {
  const { kubeconfig } = await cluster.createAgentBootstrap(name);
  const { token } = await loadConnection({ kubeconfigPath: kubeconfig });
  return await clientOf(cluster, { token });
}

type Spec = Partial<CertificateSigningRequest['spec']>;

/** Resolves with the request after its approval or denial. Rejects if the API server itself refuses it. */
async function ask(client: KubeClient, pem: string, spec: Spec): Promise<CertificateSigningRequest> {
  const { metadata } = await client.create(CERTIFICATE_SIGNING_REQUESTS, {
    metadata: { generateName: 'hostile-' },
    spec: {
      request: Buffer.from(pem).toString('base64'),
      signerName: CLIENT,
      usages: CLIENT_USAGES,
      expirationSeconds: HOUR_SECONDS,
      ...spec,
    },
  });
  return await waitFor(
    `an answer to ${metadata.name}`,
    async () => {
      const request = await cluster.client().get(CERTIFICATE_SIGNING_REQUESTS, { name: metadata.name });
      const { conditions = [], certificate } = request.status ?? {};
      return (conditions.some(({ type }) => type !== 'Approved') || certificate !== undefined) && request;
    },
    STEP,
  );
}

/** Resolves with `denied: REASON` or `refused by the API server`. Rejects if the request is neither denied nor refused. */
async function refusalOf(
  client: KubeClient,
  pem: string,
  spec: Spec = {},
): Promise<{ outcome: string; message: string }> {
  try {
    const { status } = await ask(client, pem, spec);
    expect(status?.certificate).toBeUndefined();
    const [condition] = status?.conditions ?? [];
    expect(condition?.type).toBe('Denied');
    return { outcome: `denied: ${condition?.reason}`, message: condition?.message ?? '' };
  } catch (error) {
    // 422: Go cannot read the request, or its signature is wrong. 403: the admission plugin NodeRestriction refuses it.
    if (error instanceof ApiError && (error.status === 422 || error.status === 403)) {
      return { outcome: 'refused by the API server', message: error.message };
    }
    throw error;
  }
}

const {
  commonName,
  dns,
  email,
  extensionRequest,
  forge,
  ip,
  mapped,
  names,
  organization,
  pemOf,
  rdn,
  uri,
  value,
} = make;

function subject(name: string): Buffer[] {
  return [organization(), commonName(name)];
}

async function requestFor(name: string, ...attributes: Buffer[]): Promise<string> {
  return pemOf(await forge({ subject: subject(name), attributes }));
}

type Attack = readonly [what: string, pem: () => Promise<string>, reason: RegExp, spec?: Spec];

describe('a joining host is denied, with a reason,', () => {
  /** Our reader may take one of the two names, and Go the other. */
  const twoNames = [
    value(make.OIDS.commonName, 'system:node:new'),
    value(make.OIDS.commonName, `system:node:${VICTIM}`),
  ];
  const attacks: readonly Attack[] = [
    [
      'two common names',
      async () => pemOf(await forge({ subject: [organization(), ...twoNames.map((one) => rdn(one))] })),
      /^InvalidRequest: .*exactly one common name, not 2/,
    ],
    [
      'two organizations',
      async () => pemOf(await forge({ subject: [organization('system:masters'), ...subject('new')] })),
      /^InvalidRequest: .*exactly one organization, not 2/,
    ],
    [
      'a multi-valued RDN',
      async () => pemOf(await forge({ subject: [organization(), rdn(...twoNames)] })),
      /^InvalidRequest: .*exactly one value, not 2/,
    ],
    [
      'an organizational unit too',
      async () =>
        pemOf(await forge({ subject: [...subject('new'), rdn(value(make.OIDS.organizationalUnit, 'x'))] })),
      /^InvalidRequest: .*nothing else/,
    ],
    [
      'a common name in another alphabet (T61String)',
      async () =>
        pemOf(
          await forge({
            subject: [organization(), rdn(value(make.OIDS.commonName, 'system:node:new', 0x14))],
          }),
        ),
      /^InvalidRequest: .*PrintableString or UTF8String/,
    ],
    [
      'text before BEGIN, and then another block',
      async () => `text ${await requestFor('new')}${await requestFor(VICTIM)}`,
      /^InvalidRequest: .*exactly one PEM block/,
    ],
    [
      'text before BEGIN on its own line',
      async () => `text\n${await requestFor('new')}`,
      /^InvalidRequest: .*exactly one PEM block/,
    ],
    [
      'two blocks',
      async () => `${await requestFor('new')}${await requestFor(VICTIM)}`,
      /^InvalidRequest: .*exactly one PEM block/,
    ],
    [
      'a block with a header',
      async () => (await requestFor('new')).replace('\n', '\nA: b\n\n'),
      /^InvalidRequest: .*exactly one PEM block/,
    ],
    [
      'two extensionRequests',
      () => requestFor('new', extensionRequest(), extensionRequest(names(dns('kubernetes.default.svc')))),
      /^InvalidRequest: .*exactly 1 part/,
    ],
    [
      'a challenge password',
      () => requestFor('new', make.attribute(make.OIDS.challengePassword, value(make.OIDS.commonName, 'x'))),
      /^InvalidRequest: .*no attribute other than extensionRequest/,
    ],
    [
      'to be an authority',
      () =>
        requestFor(
          'new',
          extensionRequest(make.extension(make.OIDS.basicConstraints, Buffer.from('30030101ff', 'hex'))),
        ),
      /^InvalidRequest: .*no extension other than subjectAltName/,
    ],
    [
      'subject alternative names',
      () => requestFor('new', extensionRequest(names(dns('kubernetes.default.svc')))),
      /^InvalidNames: /,
    ],
    [
      'more after the last part',
      async () => pemOf(await forge({ subject: subject('new'), trailing: [organization()] })),
      /^InvalidRequest: .*exactly 4 parts/,
    ],
    [
      'another version',
      async () => pemOf(await forge({ subject: subject('new'), version: 2 })),
      /^InvalidRequest: .*form that agents use/,
    ],
    [
      'usages of a server',
      () => requestFor('new'),
      /^InvalidUsages: .*exactly client auth, digital signature/,
      { usages: SERVING_USAGES },
    ],
    [
      'usages of both',
      () => requestFor('new'),
      /^InvalidUsages: /,
      { usages: [...CLIENT_USAGES, 'server auth'] },
    ],
    [
      'a certificate of a day',
      () => requestFor('new'),
      /^InvalidLifetime: .*at most 3600/,
      { expirationSeconds: 86_400 },
    ],
    [
      'a certificate without an end of its own',
      () => requestFor('new'),
      /^InvalidLifetime: /,
      { expirationSeconds: undefined as never },
    ],
    ['the name of a dead node', () => requestFor(VICTIM), /^NodeExists: .*kubectl delete node/],
    ['a name with a comma', () => requestFor(`new,${VICTIM}`), /^InvalidSubject: .*lower-case DNS label/],
    ['a name with a slash', () => requestFor(`new/${VICTIM}`), /^InvalidSubject: /],
    ['a name in capitals', () => requestFor('NEW'), /^InvalidSubject: /],
    ['a name with a dot', () => requestFor('new.example'), /^InvalidSubject: /],
    ['a name with a space', () => requestFor('new '), /^InvalidSubject: /],
    ['a name with a NUL', () => requestFor('new\0'), /^InvalidRequest: /],
    ['a name that looks like another (Cyrillic)', () => requestFor('nеw'), /^InvalidRequest: /],
    ['an empty name', () => requestFor(''), /^InvalidSubject: /],
    ['a name of 64 letters', () => requestFor('a'.repeat(64)), /^InvalidSubject: /],
    [
      'no node at all',
      async () =>
        pemOf(
          await forge({
            subject: [organization('system:masters'), rdn(value(make.OIDS.commonName, 'admin'))],
          }),
        ),
      /^InvalidSubject: /,
    ],
  ];

  test.for(attacks)('%s', async ([what, pem, reason, spec], context) => {
    const { outcome, message } = await refusalOf(
      await joiner(what.includes('dead node') ? VICTIM : 'new'),
      await pem(),
      spec,
    );
    tried(context, what, outcome);
    expect(`${outcome.replace('denied: ', '')}: ${message}`).toMatch(reason);
  });
});

describe('a host that asks for a serving certificate is denied, with a reason,', () => {
  const attacks: readonly Attack[] = [
    [
      'two extensionRequests',
      () =>
        requestFor(
          HOST,
          extensionRequest(names(ip(HOST_ADDRESS))),
          extensionRequest(names(dns('kubernetes.default.svc'))),
        ),
      /^(InvalidRequest: .*exactly 1 part|refused by the API server: .*duplicate)/,
    ],
    [
      'two extensionRequests, the first empty',
      () => requestFor(HOST, extensionRequest(), extensionRequest(names(dns('kubernetes.default.svc')))),
      /^InvalidRequest: .*exactly 1 part/,
    ],
    [
      'subjectAltName twice',
      () => requestFor(HOST, extensionRequest(names(ip(HOST_ADDRESS)), names(dns('kubernetes.default.svc')))),
      /^(InvalidRequest|refused by the API server): /,
    ],
    [
      'a URI',
      () => requestFor(HOST, extensionRequest(names(ip(HOST_ADDRESS), uri('spiffe://a/b')))),
      /^InvalidRequest: .*not a URI/,
    ],
    [
      'an e-mail address',
      () => requestFor(HOST, extensionRequest(names(ip(HOST_ADDRESS), email('a@b')))),
      /^InvalidRequest: .*not an e-mail address/,
    ],
    ['no names at all', () => requestFor(HOST), /^InvalidNames: .*at least one address/],
    [
      'an empty subjectAltName',
      () => requestFor(HOST, extensionRequest(names())),
      /^InvalidRequest: .*empty/,
    ],
    [
      'an IPv4 address as IPv6',
      () => requestFor(HOST, extensionRequest(names(mapped(HOST_ADDRESS)))),
      /^InvalidRequest: .*with 4 bytes/,
    ],
    [
      'usages of a client',
      () => requestFor(HOST, extensionRequest(names(ip(HOST_ADDRESS)))),
      /^InvalidUsages: .*exactly digital signature, server auth/,
      { usages: CLIENT_USAGES },
    ],
    [
      "another node's name",
      () => requestFor(VICTIM, extensionRequest(names(ip(HOST_ADDRESS)))),
      /^(NotItself|refused by the API server): /,
    ],
  ];

  test.for(attacks)('%s', async ([what, pem, reason, spec], context) => {
    const serving = { signerName: SERVING, usages: SERVING_USAGES, ...spec };
    const { outcome, message } = await refusalOf(host, await pem(), serving);
    tried(context, `to serve: ${what}`, outcome);
    expect(`${outcome.replace('denied: ', '')}: ${message}`).toMatch(reason);
  });
});

describe('a host that publishes addresses of others and asks for a serving certificate', () => {
  async function clusterIP(): Promise<string> {
    const { spec } = await cluster.client().get(SERVICES, { namespace: 'default', name: 'kubernetes' });
    return spec?.clusterIPs?.[0] ?? '';
  }

  const addresses: readonly [string, () => string | Promise<string>, RegExp][] = [
    ["another node's", () => NEIGHBOUR_ADDRESS, /^AddressTaken: .*Node neighbour has the address/],
    ["the API server's Service's", clusterIP, /^AddressOfService: /],
    ['a public one', () => '203.0.113.7', /^AddressNotAllowed: .*hosts\.addressCIDRs/],
    ["the metadata service's", () => '169.254.169.254', /^AddressNotAllowed: .*hosts\.addressCIDRs/],
    ['none', () => '0.0.0.0', /^AddressNotAllowed: /],
  ];

  test.for(addresses)('is denied: %s', async ([what, addressOf, reason], context) => {
    const address = await addressOf();
    await publish([HOST_ADDRESS, address]);
    const pem = await requestFor(HOST, extensionRequest(names(ip(HOST_ADDRESS), ip(address))));
    const { outcome, message } = await refusalOf(host, pem, { signerName: SERVING, usages: SERVING_USAGES });
    tried(context, `publishes an address: ${what}`, outcome);
    expect(`${outcome.replace('denied: ', '')}: ${message}`).toMatch(reason);
  });

  test('is denied: a DNS name', async (context) => {
    await host.mergePatch(
      NODES,
      { name: HOST },
      { status: { addresses: [{ type: 'InternalDNS', address: 'kubernetes.default.svc' }] } },
      { subresource: 'status' },
    );
    const pem = await requestFor(HOST, extensionRequest(names(dns('kubernetes.default.svc'))));
    const { outcome, message } = await refusalOf(host, pem, { signerName: SERVING, usages: SERVING_USAGES });
    tried(context, 'publishes an address: a DNS name', outcome);
    expect(message).toMatch(/only IP addresses, but the request contains the names kubernetes\.default\.svc/);
  });
});

describe('an issued certificate,', () => {
  test('read by Go, has the approved names, and so has its request', async (context) => {
    await publish([HOST_ADDRESS]);
    await ask(await joiner('good'), await requestFor('good'), {});
    await ask(
      await joiner('printable'),
      pemOf(
        await forge({
          subject: [
            rdn(value(make.OIDS.commonName, 'system:node:printable', TAGS.printableString)),
            organization(),
          ],
        }),
      ),
      {},
    );
    await ask(host, await requestFor(HOST), { expirationSeconds: 2 * HOUR_SECONDS });
    await ask(host, await requestFor(HOST, extensionRequest(names(ip(HOST_ADDRESS)))), {
      signerName: SERVING,
      usages: SERVING_USAGES,
    });
    const { items } = await cluster.client().list(CERTIFICATE_SIGNING_REQUESTS);
    const issued = items.filter(({ status }) => status?.certificate !== undefined);
    expect(issued.length).toBe(4);
    const pems = issued.map(
      ({ spec, status }) =>
        [Buffer.from(spec.request, 'base64'), Buffer.from(status?.certificate ?? '', 'base64')] as const,
    );
    const requests = await go.read(pems.map(([pem]) => ({ kind: 'request', pem })));
    const certificates = await go.read(pems.map(([, pem]) => ({ kind: 'certificate', pem })));
    for (const [index, [pem]] of pems.entries()) {
      const { organization: own, ...approved } = readSigningRequest(pem.toString('latin1'));
      const expected = { ...approved, organizations: [own], others: [] };
      expect(requests[index]).toEqual(expected);
      expect(certificates[index]).toEqual(expected);
      tried(context, 'a request as agents write it', 'issued as approved');
    }
    const approvedNames = issued.map(
      ({ spec }) => readSigningRequest(Buffer.from(spec.request, 'base64').toString('latin1')).commonName,
    );
    expect(new Set(approvedNames)).toEqual(
      new Set(['good', 'printable', HOST].map((name) => `system:node:${name}`)),
    );
  });
});
