/** The nouns of the command `berth` besides VMs: the exact forms that integrations call, as a member of a namespace and as a cluster admin. */
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import { VERSION } from '../../api/v1alpha1/version.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { SECRETS } from '../../kube/core.ts';
import { Emulators } from '../fixtures/emulatorobjects.ts';
import { VMs } from '../fixtures/vms.ts';
import { accountToken, writeTokenKubeconfig } from '../support/members.ts';
import { BerthCommand, type CommandOptions, type CommandResult } from '../wires/berth.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import type { StartedProgram } from '../wires/startedprogram.ts';
import { ActingHost } from '../worlds/actinghost.ts';

const namespace = 'platform-default';
const ADB = { address: '10.0.0.17', port: 5555 };

let cluster: Cluster;
let operator: OperatorProcess;
let server: ServerProcess;
let vms: VMs;
/** Longest life of a token that the API server gives. */
const TOKEN_SECONDS = 7_200;

let emulators: Emulators;
/** Host whose agent is the test. */
let bare: ActingHost;
let command: BerthCommand;
/** Token of a member with the role dev. */
let token: string;
/** Kubeconfig with a token that nobody has. */
let stale: string;
/** Variables with which the command trusts the certificate of the HTTP API. */
let environment: Record<string, string>;

beforeAll(async () => {
  cluster = await startCluster({ name: `cli-nouns-${process.pid}`, accountTokenSeconds: TOKEN_SECONDS });
  operator = await cluster.startOperator({ config: { defaults: { architecture: 'arm64' } } });
  server = await cluster.startServer();
  vms = new VMs(cluster);
  emulators = new Emulators(cluster);
  bare = await ActingHost.join(cluster.client(), 'bare');
  await bare.placeable();
  const authority = join(cluster.directory, 'server-authority.crt');
  writeFileSync(authority, server.authority);
  environment = { NODE_EXTRA_CA_CERTS: authority };
  token = await accountToken(cluster, { namespace, name: 'dev' }, { role: 'berth-role-dev' });
  command = await BerthCommand.make(await writeTokenKubeconfig(cluster, token, 'dev'));
  stale = await writeTokenKubeconfig(cluster, 'eyJhbGciOiJub25lIn0.e30.', 'stale');
  await waitFor('the rights', async () => (await berth('vm', 'list')).code === 0);
});

afterAll(async () => {
  await command?.[Symbol.asyncDispose]();
  await bare?.silence();
  await server?.process.stop();
  await operator?.stop();
  await cluster?.stop();
});

async function berth(...args: string[]): Promise<CommandResult> {
  return await command.run(args, { environment });
}

async function berthAsAdmin(...args: string[]): Promise<CommandResult> {
  return await command.run(args, { environment, kubeconfig: cluster.kubeconfig });
}

/** Runs the command as an integration does: both streams are one, and all of it must be JSON. */
async function json(args: readonly string[], options: CommandOptions = {}) {
  const { code, out } = await command.run([...args, '-o', 'json'], {
    environment,
    together: true,
    ...options,
  });
  expect([code, out]).toEqual([0, expect.stringMatching(/^\[/)]);
  // oxlint-disable-next-line typescript/no-explicit-any -- Each test reads other fields of it.
  return JSON.parse(out) as any[];
}

async function jsonAsAdmin(...args: string[]) {
  return await json(args, { kubeconfig: cluster.kubeconfig });
}

/** Starts an HTTP API of another cluster. It records the headers `Authorization` that it gets. */
async function startStranger() {
  const seen: (string | undefined)[] = [];
  const http = createServer(({ headers }, response) => {
    seen.push(headers.authorization);
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ apiEndpoint: 'https://192.0.2.1:6443', certData: '', items: [] }));
  });
  await once(http.listen(0, '127.0.0.1'), 'listening');
  const { port } = http.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, seen, stop: () => void http.close() };
}

describe('config', () => {
  it('set makes the missing folders, and view shows what was set', async () => {
    const folder = join(cluster.directory, 'no', 'folders', 'yet');
    const elsewhere = { environment: { XDG_CONFIG_HOME: folder } };
    const set = await command.run(['config', 'set', '--api-url', `${server.url}/`], elsewhere);
    const file = join(folder, 'berth', 'config.yaml');
    expect(set).toEqual({ code: 0, out: `Set apiURL to ${server.url} in ${file}\n`, err: '' });
    expect(await json(['config', 'view'], elsewhere)).toEqual([{ name: 'apiURL', value: server.url }]);
    writeFileSync(file, '# Mine\naliases: {namespaceVariable: CI_NAMESPACE}\n');
    await command.run(['config', 'set', '--api-url', 'https://berth.example'], elsewhere);
    expect(readFileSync(file, 'utf8')).toBe(
      '# Mine\naliases: { namespaceVariable: CI_NAMESPACE }\napiURL: https://berth.example\n',
    );
    writeFileSync(file, 'apiUrl: https://berth.example\n');
    const refused = await command.run(['config', 'set', '--api-url', 'https://berth.example'], elsewhere);
    expect([refused.code, refused.err]).toEqual([2, expect.stringContaining('apiUrl is not a setting')]);
    expect(readFileSync(file, 'utf8')).toBe('apiUrl: https://berth.example\n');
  });
});

it('the first calls in a container make the missing folders, and its token holds', async () => {
  const home = join(cluster.directory, 'container');
  const options = {
    environment: { ...environment, XDG_CONFIG_HOME: join(home, 'settings') },
    kubeconfig: join(home, 'kube', 'config'),
  };
  const calls = [
    ['config', 'set', '--api-url', server.url],
    ['user', 'set-token', token],
    ['node', 'list', '--namespace', namespace],
  ];
  for (const args of calls) {
    expect(await command.run(args, options)).toMatchObject({ code: 0, err: '' });
  }
  expect(await json(['vm', 'list', '--namespace', namespace], options)).toEqual([]);
});

describe('node', () => {
  it('list says Unauthorized to a token that nobody has', async () => {
    const { code, out } = await command.run(['node', 'list'], { kubeconfig: stale, together: true });
    expect([code, out]).toEqual([3, expect.stringContaining('Unauthorized')]);
  });

  it('list asks the HTTP API for members, who have no right to Nodes', async () => {
    const refused = await berth('node', 'list');
    expect([refused.code, refused.err]).toEqual([3, expect.stringContaining('config set --api-url')]);
    await berth('config', 'set', '--api-url', server.url);
    const asMember = await json(['node', 'list', '--namespace', namespace]);
    expect(asMember).toMatchObject([{ name: 'bare', namespace, phase: 'READY', slots: 4, slotsFree: 4 }]);
    expect(await jsonAsAdmin('node', 'list')).toEqual(asMember);
    const full = { reason: 'DiskNearlyFull', message: 'The disk is nearly full' };
    await bare.setCondition({ type: 'DiskPressure', status: 'True', ...full });
    const shown = await waitFor('the HTTP API to say why the host takes no VMs', async () => {
      const found = await json(['node', 'list', '--namespace', namespace]);
      return JSON.stringify(found).includes(full.message) ? found : undefined;
    });
    expect(shown).toMatchObject([full]);
    expect(await jsonAsAdmin('node', 'list')).toEqual(shown);
    await bare.setCondition({ type: 'DiskPressure', status: 'False', reason: 'SufficientDisk' });
    await bare.placeable();
    const { code, out, err } = await berth('node', 'get', 'bare', 'absent');
    expect([code, out]).toEqual([
      4,
      expect.stringMatching(/^NAME +STATUS +IP .*\nbare +READY +192\.0\.2\.9 /),
    ]);
    expect(err).toBe(`error: node "absent" not found in namespace ${namespace}\n`);
    const none = await berthAsAdmin('node', 'list', '-n', 'platform-elsewhere');
    expect([none.code, none.err]).toEqual([
      4,
      expect.stringContaining('namespaces "platform-elsewhere" not found'),
    ]);
  });

  it('a member gets the versions of the HTTP API and of the agents from it', async () => {
    const versions = await json(['version']);
    expect(versions).toEqual([
      { name: 'berth', version: VERSION },
      { name: 'server', version: VERSION },
      { name: 'agent', version: 'unknown', hosts: 1 },
    ]);
  });

  it('list names an HTTP API that is away', async () => {
    await berth('config', 'set', '--api-url', 'https://127.0.0.1:1');
    const { code, err } = await berth('node', 'list');
    await berth('config', 'set', '--api-url', server.url);
    expect([code, err]).toEqual([
      5,
      expect.stringContaining('The HTTP API https://127.0.0.1:1 does not answer'),
    ]);
  });

  it('list sends no token to the HTTP API of another cluster', async () => {
    const stranger = await startStranger();
    await berth('config', 'set', '--api-url', stranger.url);
    const { code, err } = await berth('node', 'list');
    await berth('config', 'set', '--api-url', server.url);
    stranger.stop();
    expect([code, err]).toEqual([2, expect.stringContaining('does not belong to the cluster of')]);
    expect(stranger.seen).toEqual([undefined]);
  });

  it('give-up needs no Node, is refused for a host that reports, and needs the rights of an administrator', async () => {
    const gone = await berthAsAdmin('node', 'give-up', 'burnt');
    expect(gone).toEqual({ code: 0, out: 'Successfully gave up node burnt\n', err: '' });
    const reports = await berthAsAdmin('node', 'give-up', 'bare');
    expect([reports.code, reports.err]).toEqual([1, expect.stringContaining('Host bare reports')]);
    expect((await berth('node', 'give-up', 'bare')).code).toBe(3);
  });
});

describe('emulator', () => {
  const deploy = (name: string, ...flags: string[]) => [
    'emulator',
    'deploy',
    name,
    '--vm',
    'paired',
    ...flags,
  ];

  beforeAll(async () => {
    await vms.create('paired', { placement: { node: 'bare' }, cpu: 1, memory: '512Mi' });
    await bare.waitForPod({ namespace, name: 'paired' });
    await bare.run({ namespace, name: 'paired' });
    await vms.waitForPhase('paired', 'Running');
  });

  async function boot(name: string): Promise<void> {
    await bare.waitForPod(emulators.podRef(name));
    await bare.setPodCondition(emulators.podRef(name), {
      type: MACHINE_CONDITION,
      status: 'True',
      reason: 'running',
      message: JSON.stringify({ adb: ADB }),
    });
    await bare.run(emulators.podRef(name));
  }

  it('deploy waits until Android runs, and list, get and delete show and end it', async () => {
    const flags = ['--platform', 'android-35', '--image-type', 'google_apis', '--device-profile', 'pixel_7'];
    const [[item]] = await Promise.all([
      json([...deploy('pixel', ...flags, '--memory', '3Gi', '--timeout', '3'), '--namespace', namespace]),
      boot('pixel'),
    ]);
    expect(item).toMatchObject({
      name: 'pixel',
      vm: 'paired',
      node: 'bare',
      status: 'Running',
      platform: 'android-35',
      imageType: 'google_apis',
      deviceProfile: 'pixel_7',
      relayIp: ADB.address,
      relayPort: ADB.port,
    });
    const { metadata, spec } = await emulators.get('pixel');
    expect([metadata.annotations, spec.memory]).toMatchObject([
      { 'berth.dev/created-by': `system:serviceaccount:${namespace}:dev` },
      '3Gi',
    ]);
    expect(await json(['emulator', 'list'])).toEqual([item]);
    expect(await json(['emulator', 'get', 'pixel'])).toEqual([item]);
    const deleted = berth('emulator', 'delete', 'pixel', 'absent', '--namespace', namespace);
    await bare.end(emulators.podRef('pixel'));
    expect(await deleted).toEqual({
      code: 4,
      out: 'Successfully deleted emulator pixel\n',
      err: `error: emulator "absent" not found in namespace ${namespace}\n`,
    });
    await emulators.waitUntilGone('pixel');
  });

  it('deploy that fails deletes the emulator and has its words', async () => {
    const result = berth(...deploy('broken'));
    await bare.waitForPod(emulators.podRef('broken'));
    await bare.fail(emulators.podRef('broken'), 'StartFailed', 'no such system image');
    const { code, out, err } = await result;
    expect([code, out, err]).toEqual([
      1,
      '',
      expect.stringMatching(/no such system image.*\. Emulator broken was deleted\n$/),
    ]);
    await emulators.waitUntilGone('broken');
  });

  it('deploy refuses what cannot be, and names the flag', async () => {
    const results = await Promise.all([
      berth('emulator', 'deploy', 'alone', '--vm', 'absent'),
      berth(...deploy('configured', '--config', 'ci')),
      berth(...deploy('odd', '--platform', '../x', '--device-profile', 'abacus')),
    ]);
    expect(results.map(({ code }) => code)).toEqual([4, 2, 1]);
    const [absent, configured, odd] = results.map(({ err }) => err);
    expect(absent).toContain('vm "absent" not found');
    expect(configured).toContain('--config: there are no emulator configs');
    expect(odd).toMatch(/--platform: .*\.\.\/x/);
    expect(odd).toMatch(/--device-profile: .*abacus/);
  });

  it('emulator-config list is an empty list', async () => {
    expect(await json(['emulator-config', 'list', '--namespace', namespace])).toEqual([]);
  });
});

describe('members of a namespace', () => {
  const made = 'platform-nouns';

  it('namespace list, create and delete', async () => {
    const create = ['namespace', 'create', made, '--enable-custom-pods'];
    expect(await berthAsAdmin(...create)).toMatchObject({
      code: 0,
      out: `Successfully created namespace ${made}\n`,
    });
    expect(await jsonAsAdmin('namespace', 'list')).toContainEqual({ name: made, customPods: true });
    const [refused, kept] = await Promise.all([
      berthAsAdmin('namespace', 'create', 'other-nouns'),
      berthAsAdmin('namespace', 'delete', namespace, 'platform-absent'),
    ]);
    expect([refused.code, refused.err]).toEqual([2, expect.stringContaining('must begin with platform-')]);
    expect([kept.code, kept.err]).toEqual([
      1,
      expect.stringMatching(/platform-default belongs to Berth.*\n.*"platform-absent" not found/),
    ]);
    const { code, out } = await berthAsAdmin('namespace', 'delete', made);
    expect([code, out]).toEqual([0, `Successfully deleted namespace ${made}\n`]);
  });

  it('serviceaccount token and the HTTP API say the life that the cluster gives, if it is shorter than asked for', async () => {
    const name = 'longlived';
    await berthAsAdmin('serviceaccount', 'create', name);
    const message =
      'The token lives for 2h instead of 8760h, because the API server of the cluster allows no longer life (--service-account-max-token-expiration)';
    const alone = await berthAsAdmin('serviceaccount', 'token', name);
    expect(alone).toEqual({
      code: 0,
      out: expect.stringMatching(/^[\w.-]+\n$/),
      err: `warning: ${message}\n`,
    });
    const item = { token: expect.any(String), expirationTimestamp: expect.any(String) };
    const cut = { ...item, expirationSeconds: TOKEN_SECONDS, message };
    expect(await jsonAsAdmin('serviceaccount', 'token', name)).toEqual([{ name, ...cut }]);
    const boss = await accountToken(cluster, { namespace, name: 'boss' }, { role: 'berth-role-admin' });
    const client = new HTTPClient(server);
    const path = `/api/v1/namespaces/${namespace}/serviceaccounts/${name}/token`;
    const request = async (body: object) => await client.call(path, { method: 'POST', token: boss, body });
    const { body } = await waitFor('the rights', async () => {
      const answer = await request({});
      return answer.status === 200 ? answer : undefined;
    });
    expect(body).toEqual(cut);
    const left = (Date.parse(body.expirationTimestamp) - Date.now()) / 1000;
    expect(Math.abs(left - TOKEN_SECONDS)).toBeLessThan(60);
    expect((await request({ duration: '1h' })).body).toEqual({ ...item, expirationSeconds: 3_600 });
    await client.close();
  });

  it('serviceaccount and rolebinding make members, whose tokens hold', async () => {
    const name = 'runner';
    expect((await berthAsAdmin('serviceaccount', 'create', name)).out).toBe(
      `Successfully created serviceaccount ${name}\n`,
    );
    expect(await jsonAsAdmin('serviceaccount', 'list')).toContainEqual({ name, namespace });
    const token = await berthAsAdmin('serviceaccount', 'token', name, '--duration', '1h');
    expect([token.code, token.err, token.out]).toEqual([0, '', expect.stringMatching(/^[\w.-]+\n$/)]);
    const kubeconfig = await writeTokenKubeconfig(cluster, token.out.trim(), 'runner');
    await waitFor(
      'the role',
      async () => (await command.run(['vm', 'list'], { environment, kubeconfig })).code === 0,
    );
    const subject = { kind: 'ServiceAccount', name, namespace };
    expect(await jsonAsAdmin('rolebinding', 'list')).toContainEqual(subject);
    const user = 'ann@example.com';
    await berthAsAdmin('rolebinding', 'add-subject', '--user', user);
    expect(await jsonAsAdmin('rolebinding', 'list')).toContainEqual({ kind: 'User', name: user });
    await berthAsAdmin(
      'rolebinding',
      'remove-subject',
      '--user',
      user,
      '--serviceaccount',
      `${namespace}:${name}`,
    );
    expect(await jsonAsAdmin('rolebinding', 'list')).not.toContainEqual(subject);
    const results = await Promise.all([
      berthAsAdmin('serviceaccount', 'delete', name, 'absent'),
      berthAsAdmin('serviceaccount', 'token', name, '--duration', '1h', '--no-expiration'),
      berthAsAdmin('serviceaccount', 'token', name, '--duration', '1s'),
    ]);
    expect(results.map(({ code }) => code)).toEqual([4, 2, 2]);
    expect(results[0]?.err).toContain('"absent" not found');
  });

  it('registry takes the password from its input, and shows it to nobody', async () => {
    const url = 'https://registry.example:5000';
    const add = ['registry', 'add', url, '--username', 'ci', '--password-stdin'];
    const options = { environment, kubeconfig: cluster.kubeconfig };
    const added = await command.run(add, { ...options, input: 'pass word\n' });
    expect(added).toEqual({ code: 0, out: `Successfully added credential for ${url}\n`, err: '' });
    expect(await json(['registry', 'list'])).toEqual([{ server: url, username: 'ci', allowInsecure: false }]);
    const again = await command.run(add, { ...options, input: 'other' });
    expect([again.code, again.err]).toEqual([
      1,
      expect.stringContaining('To overwrite the credential, use --replace'),
    ]);
    const { code, err } = await command.run(add.slice(0, -1), options);
    expect([code, err]).toEqual([2, expect.stringContaining('Use --password-stdin')]);
    const { items } = await cluster.client().list(SECRETS, { namespace });
    const content = items.map(({ data }) => data?.['.dockerconfigjson']).find((one) => one !== undefined);
    expect(Buffer.from(content ?? '', 'base64').toString()).toContain('"password":"pass word"');
    expect((await berthAsAdmin('registry', 'delete', url)).out).toBe(
      `Successfully deleted credential for ${url}\n`,
    );
    const gone = await berthAsAdmin('registry', 'delete', url);
    expect([gone.code, gone.err]).toEqual([4, expect.stringContaining('not found')]);
  });

  it('secret makes a Secret that guests may get, from a file whose content no argument has', async () => {
    const file = join(cluster.directory, 'setup.yaml');
    writeFileSync(file, '#cloud-config\npassword: geheim\n');
    const create = ['secret', 'create', 'setup', '--from-file', file];
    expect(await berthAsAdmin(...create)).toEqual({
      code: 0,
      out: 'Successfully created secret setup\n',
      err: '',
    });
    const { type, data } = await cluster.client().get(SECRETS, { namespace, name: 'setup' });
    expect(type).toBe('berth.dev/user-data');
    const text = Buffer.from(data?.['user-data'] ?? '', 'base64').toString();
    expect(text).toBe('#cloud-config\npassword: geheim\n');
    const again = await berthAsAdmin(...create);
    expect([again.code, again.err]).toEqual([1, expect.stringContaining('already exists')]);
    await cluster.client().create(SECRETS, { metadata: { namespace, name: 'other' }, type: 'Opaque' });
    const missing = await berthAsAdmin('secret', 'create', 'setup', '--from-file', `${file}.absent`);
    expect([missing.code, missing.err]).toEqual([2, expect.stringContaining('does not exist')]);
    const foreign = await berthAsAdmin('secret', 'delete', 'setup', 'absent', 'other');
    expect([foreign.code, foreign.out]).toEqual([4, 'Successfully deleted secret setup\n']);
    expect(foreign.err).toContain('secret "absent" not found');
    expect(foreign.err).toContain('deletes only Secrets of type berth.dev/user-data');
  });

  it('registry asks a person for the password, which is not shown, and ends with a signal', async () => {
    const add = ['registry', 'add', 'https://registry.example', '--username', 'ci'];
    const call = `sh -c 'echo "pid $$"; exec ${command.expected(add).join(' ')}'`;
    const ends = [
      ['143', (_: StartedProgram, pid: number) => process.kill(pid, 'SIGTERM')],
      ['130', (asking: StartedProgram) => asking.type('secret\u0003')],
    ] as const;
    for (const [expected, end] of ends) {
      const asking = command.inTerminal(`echo "begin $(stty -g)"; ${call}; echo "end $? $(stty -g)"`);
      const [, pid] = await asking.prints(/pid (\d+)\s+Password: $/);
      end(asking, Number(pid));
      const [, before, code, after] = await asking.prints(/begin (\S+)[^]*Interrupted\s+end (\d+) (\S+)\s/);
      expect([code, after]).toEqual([expected, before]);
      expect((await asking.result()).stdout).not.toContain('secret');
    }
  });
});
