/** The HTTP API on a real cluster: people sign in at a provider, and everybody calls every operation. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { authenticationConfiguration } from '../../../hack/authentication.ts';
import type { VM } from '../../../api/v1alpha1/vm.ts';
import { createAuthority, issue } from '../../../hack/cluster/authority.ts';
import { whyNoNodes } from '../../../hack/cluster/nodes/requirements.ts';
import { type HttpOperation, operationsOf } from '../../../hack/docs/httprights.ts';
import { waitFor } from '../../../hack/wait.ts';
import { createKey } from '../../../kube/certificates/certificate.ts';
import { KubeClient } from '../../../kube/client.ts';
import { loadConnection } from '../../../kube/credentials.ts';
import { createMetrics } from '../../../kube/metrics.ts';
import { Transport } from '../../../kube/transport.ts';
import { VMS } from '../../../api/v1alpha1/resources.ts';
import type { HTTPRole } from '../../../server/own/rights.ts';
import { httpObjects, type HTTPRequest, httpRequests } from '../../fixtures/httprequests.ts';
import { plantedIn, plantedObjects } from '../../fixtures/plantedsecrets.ts';
import { CHART } from '../../support/chart.ts';
import { unless } from '../../support/unless.ts';
import { BerthCommand } from '../../wires/berth.ts';
import { bodyOf, Curl, SERVICE } from '../../wires/curl.ts';
import { Installed, ROLLOUT, SET_UP_MILLISECONDS, SYSTEM, VALUES } from '../../worlds/installed.ts';
import { CLIENT, IdentityProvider } from '../../worlds/provider.ts';
import { signIn, signInByDevice } from '../../worlds/signin.ts';

const OPENAPI = join(import.meta.dirname, '..', '..', '..', 'docs', 'reference', 'openapi.json');
const PLACE = { namespace: 'platform-rights', host: 'node2-berth' };
const NAMESPACE = `/api/v1/namespaces/${PLACE.namespace}`;
/** Roles of the groups at the provider. Members of the last one have no role. */
const GROUPS = {
  dev: 'devs',
  admin: 'admins',
  'namespace-admin': 'owners',
  viewer: 'auditors',
  stranger: 'guests',
};
const ROLES = {
  dev: ['oidc:devs'],
  admin: ['oidc:admins'],
  namespaceAdmin: ['oidc:owners'],
  viewer: ['oidc:auditors'],
};
const ACCOUNTS = {
  ...Object.fromEntries(Object.entries(GROUPS).map(([name, group]) => [name, { groups: [group] }])),
  custom: { groups: ['others'] },
  groupless: {},
};
type Roles = readonly HTTPRole[] | 'everything' | 'no token';
/** Callers and their roles. Custom users are cluster administrators with the default values. */
const CALLERS: Readonly<Record<string, Roles>> = {
  dev: ['dev'],
  admin: ['admin'],
  'namespace-admin': ['namespace-admin'],
  viewer: ['viewer'],
  'service-account': ['dev'],
  stranger: [],
  custom: 'everything',
  nobody: 'no token',
};
const HOUR_SECONDS = 3600;
/** Port of the containers. The Service has another one. */
const POD_PORT = 8443;

const unfit = whyNoNodes();

describe('The HTTP API of an installation', unless(unfit), () => {
  let provider: IdentityProvider;
  let berth: Installed;
  let values: object;
  /** Files of the uploaded certificate, and of its authority. */
  let files: { certPath: string; keyPath: string };
  let trust: string;
  let curl: Curl;

  beforeAll(async () => {
    provider = await IdentityProvider.start(ACCOUNTS);
    const { issuer, authority } = provider;
    const managedGroups = Object.values(GROUPS);
    const options = { issuer, authority, client: CLIENT, managedGroups };
    const authentication = stringify(authenticationConfiguration(options));
    const port = Number(new URL(issuer).port);
    berth = await Installed.start('http', { signIn: { port, authentication } });
    values = { ...VALUES, roles: ROLES, server: { config: { cluster: { issuer, clientID: CLIENT } } } };
    await berth.prepareNodes();
    await writeCertificate();
  }, SET_UP_MILLISECONDS);

  afterAll(async () => {
    await berth?.[Symbol.asyncDispose]();
    await provider?.close();
  });

  async function writeCertificate(): Promise<void> {
    const { directory } = berth.cluster;
    files = { certPath: join(directory, 'http.crt'), keyPath: join(directory, 'http.key') };
    trust = join(directory, 'http-authority.crt');
    const authority = await createAuthority('http');
    const key = await createKey('RSA');
    const subject = { commonName: 'http', dnsNames: [SERVICE], usages: ['server'] as const };
    await writeFile(trust, authority.certificate);
    await writeFile(files.certPath, await issue(authority, { ...subject, key }));
    await writeFile(files.keyPath, key.pem, { mode: 0o600 });
  }

  /** Returns curl at an address. It trusts the uploaded certificate, or every certificate without `trust`. */
  function curlAt(address: string, options: { port?: number; trust?: string } = {}): Curl {
    const [node] = berth.nodes;
    if (node === undefined) {
      throw new Error('the cluster has no nodes');
    }
    return new Curl({ node, directory: berth.cluster.directory, address, ...options });
  }

  /** Signs in at the provider and stores the token, with which the person calls the API. */
  async function signedIn(account: string, method = signIn): Promise<string> {
    const token = await method(provider, account);
    await curl.storeToken(account, token);
    return token;
  }

  /** Returns the body of the answer to a request that must succeed. */
  async function post(as: string, path: string, body?: object): Promise<unknown> {
    const answer = await curl.call(path, { method: 'POST', as, body });
    expect(answer).toMatchObject({ code: 200 });
    return bodyOf(answer);
  }

  /** Returns a VM as the API server shows it to this caller. */
  async function vmWithToken(token: string, name: string): Promise<VM> {
    const { kubeconfig } = berth.cluster;
    const { server, certificateAuthority } = await loadConnection({ kubeconfigPath: kubeconfig });
    const transport = new Transport({ server, certificateAuthority, token }, { metrics: createMetrics() });
    try {
      return await new KubeClient(transport).get(VMS, { namespace: PLACE.namespace, name });
    } finally {
      await transport.close();
    }
  }

  async function codeOf(as: string, path: string): Promise<number> {
    return (await curl.call(path, { as })).code;
  }

  test('helm installs it, and tells that custom users are cluster administrators', async () => {
    expect(await berth.helm(['install', 'berth', CHART, '--create-namespace'], values)).toContain(
      'Users who sign in without a managed group are CLUSTER ADMINISTRATORS',
    );
    await berth.rolledOut();
    await berth.rollout('deployment/berth-server');
    curl = curlAt(await berth.serviceAddress('berth-server'));
    // The node forwards connections to the Service a moment after its Pods are ready.
    const info = await waitFor('the Service', () => curl.call('/api/v1/cluster-info'), ROLLOUT);
    expect(bodyOf(info)).toMatchObject({ appClientId: CLIENT, issuer: provider.issuer });
  });

  test('a support bundle has logs and metrics of a real cluster, and none of 20 planted secrets', async () => {
    const { cluster } = berth;
    const [pod] = await berth.pods('operator');
    const items = pod === undefined ? [] : plantedObjects('platform-default', SYSTEM, pod);
    const input = JSON.stringify({ apiVersion: 'v1', kind: 'List', items });
    await cluster.kubectl(['create', '--filename', '-'], { input });
    const expected = ['logs', 'planted', '--namespace', SYSTEM];
    const isWritten = async () =>
      plantedIn((await cluster.kubectl(expected).catch(() => ({ stdout: '' }))).stdout).length > 0;
    await waitFor('the log of the planted Pod', isWritten, ROLLOUT);
    await using command = await BerthCommand.make(cluster.kubeconfig);
    const file = join(cluster.directory, 'support.tar.gz');
    const { code, err } = await command.run(['support-bundle', '--file', file]);
    expect([code, err]).toEqual([0, '']);
    const archive = await readFile(file);
    const content = gunzipSync(archive).toString('latin1');
    expect(plantedIn(`${archive.toString('latin1')} ${content}`)).toEqual([]);
    expect(content).toMatch(/berth-support\/logs\/\d+-planted-planted\.log/);
    expect(content).toMatch(/berth-support\/logs\/\d+-berth-operator-/);
    expect(content).toMatch(/^berth_image_store_bytes /m);
    await cluster.kubectl(['delete', '--wait=false', '--filename', '-'], { input });
  });

  test('people sign in through the pages of the provider, by code and by device', async () => {
    for (const account of Object.keys(ACCOUNTS)) {
      await signedIn(account, account === 'dev' ? signInByDevice : signIn);
    }
    const path = '/api/v1/namespaces';
    await waitFor('the provider to be known', async () => (await codeOf('dev', path)) === 200, ROLLOUT);
  });

  test('all replicas take up an uploaded certificate', async () => {
    const upload = await curl.call('/api/v1/upload/cert', { method: 'POST', as: 'namespace-admin', files });
    expect(upload).toMatchObject({ code: 200 });
    const pods = await berth.pods('server');
    expect(pods).toHaveLength(2);
    for (const { status } of pods) {
      const replica = curlAt(status?.podIP ?? '', { port: POD_PORT, trust });
      const answer = () => replica.call('/api/v1/cluster-info');
      await waitFor(`the certificate at ${status?.podIP}`, answer, ROLLOUT);
    }
    curl = curlAt(await berth.serviceAddress('berth-server'), { trust });
  });

  test('a namespace with a host and an account is made with this API alone', async () => {
    const { namespace, host } = PLACE;
    await post('namespace-admin', '/api/v1/namespaces', { name: namespace });
    await post('namespace-admin', `/api/v1/namespaces/platform-default/nodes/${host}/namespace`, {
      namespace,
    });
    const isMember = async () => (await codeOf('admin', `${NAMESPACE}/serviceaccounts`)) === 200;
    await waitFor('the members of the new namespace', isMember, ROLLOUT);
    await post('admin', `${NAMESPACE}/serviceaccounts/ci`);
    const { token } = (await post('admin', `${NAMESPACE}/serviceaccounts/ci/token`)) as { token: string };
    await curl.storeToken('service-account', token);
  });

  test('a dev deploys a VM, and sees it at the API server with the same token', async () => {
    await berth.createGuestImage('guest');
    const token = await signedIn('dev');
    const vm = await post('dev', `${NAMESPACE}/vms`, { name: 'desk', image: 'guest', cpu: 1, memory: 0.2 });
    expect(vm).toMatchObject({ name: 'desk', status: 'Running', ip: expect.stringMatching(/^10\.200\.0\./) });
    const { metadata } = await vmWithToken(token, 'desk');
    expect(metadata.annotations).toMatchObject({ 'berth.dev/created-by': 'dev@berth.test' });
    const path = `${NAMESPACE}/vms/desk?wait=true`;
    expect(await curl.call(path, { method: 'DELETE', as: 'dev' })).toMatchObject({ code: 200 });
  });

  test.each([
    ['dev', ['platform-default', PLACE.namespace]],
    ['service-account', [PLACE.namespace]],
    ['stranger', []],
  ])('a list of namespaces shows %s only those with rights', async (as, names) => {
    const { items } = bodyOf(await curl.call('/api/v1/namespaces', { as })) as {
      items: { name: string }[];
    };
    expect(items.map(({ name }) => name)).toEqual(names);
  });

  describe('every operation', () => {
    let operations: ReadonlyMap<string, HttpOperation>;

    beforeAll(async () => {
      operations = operationsOf(await readFile(OPENAPI, 'utf8'));
      const items = Object.keys(CALLERS).flatMap((own) => httpObjects(own, PLACE));
      const input = JSON.stringify({ apiVersion: 'v1', kind: 'List', items });
      await berth.cluster.kubectl(['create', '--filename', '-'], { input });
    });

    function callOf(operation: string, { path, query = '', ...rest }: HTTPRequest) {
      const [method = '', pattern = ''] = operation.split(' ');
      const address = pattern.replaceAll(/\{(\w+)\}/g, (_, name: string) => path[name] ?? '');
      return { method, path: address + query, body: rest.body, files: rest.files };
    }

    /** Returns the code that a caller gets with these roles. */
    function due(operation: string, roles: Roles, { code }: HTTPRequest): number {
      const access = operations.get(operation)?.['x-berth-roles'] ?? [];
      if (roles === 'no token') {
        return access === 'no token' ? code : 401;
      }
      const isEnough = (role: HTTPRole): boolean => access.includes(role);
      return roles === 'everything' || typeof access === 'string' || roles.some(isEnough) ? code : 403;
    }

    test.each(Object.entries(CALLERS))('answers %s as the roles say', async (name, roles) => {
      const requests = httpRequests(operations, name, PLACE, files);
      const as = roles === 'no token' ? undefined : name;
      const all = Object.entries(requests);
      const answers = await curl.codes(all.map(([one, request]) => ({ ...callOf(one, request), as })));
      const codes = Object.fromEntries(all.map(([one], index) => [one, answers[index]]));
      expect(codes).toEqual(Object.fromEntries(all.map(([one, request]) => [one, due(one, roles, request)])));
    });

    test('is in a document and on a page that everybody may read', async () => {
      expect((await curl.call('/api/v1/swagger')).code).toBe(200);
      const { paths } = bodyOf(await curl.call('/api/v1/swagger/json')) as { paths: object };
      expect(Object.keys(paths)).toEqual([
        ...new Set([...operations.keys()].map((one) => one.split(' ')[1])),
      ]);
    });
  });

  test('tokens of 61 minutes are refused, and so are tokens without groups', async () => {
    provider.idTokenSeconds = HOUR_SECONDS + 60;
    await signedIn('dev');
    provider.idTokenSeconds = HOUR_SECONDS;
    const { code, said } = await curl.call(`${NAMESPACE}/vms`, { as: 'dev' });
    expect(code).toBe(401);
    expect(said).toMatch(/^www-authenticate: .*longer than one hour/im);
    expect(said).toContain('"message":"Unauthorized"');
    expect(await codeOf('groupless', `${NAMESPACE}/vms`)).toBe(401);
    await signedIn('dev');
    expect(await codeOf('dev', `${NAMESPACE}/vms`)).toBe(200);
  });

  test('with the hardened profile, users without a managed group have no rights', async () => {
    const hardened = ['--values', join(CHART, 'hardened.yaml')];
    expect(await berth.helm(['upgrade', 'berth', CHART, ...hardened], values)).toContain(
      'Users who sign in without a managed group have no rights',
    );
    const hasNoRights = async () => (await codeOf('custom', `${NAMESPACE}/vms`)) === 403;
    await waitFor('the rights to be gone', hasNoRights, ROLLOUT);
    expect(await codeOf('dev', `${NAMESPACE}/vms`)).toBe(200);
    expect(await codeOf('groupless', `${NAMESPACE}/vms`)).toBe(401);
  });
});
