/** Sign-in by the command `berth`: at a real identity provider over TLS, for a real API server that checks its tokens. */
import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { parse, stringify } from 'yaml';
import { authenticationConfiguration } from '../../hack/authentication.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { BerthCommand, type CommandOptions, type CommandResult } from '../wires/berth.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import { CLIENT, IdentityProvider, OTHER_CLIENT } from '../worlds/provider.ts';
import { visitPages } from '../worlds/signin.ts';

const namespace = 'platform-default';
const ACCOUNTS = { dev: { groups: ['devs'] }, unverified: { groups: ['devs'], email_verified: false } };
const HOUR_SECONDS = 3600;
/** Life of tokens in a session that is renewed while the test waits. */
const SHORT_SECONDS = 2;
/** Time limit until a session has had three tokens. Each needs three starts of the command, which take seconds on a busy machine. */
const TOKENS_MILLISECONDS = 90_000;
/** Plug-ins that kubectl and its user start at the same time. */
const PLUGINS = 4;

let provider: IdentityProvider;
let cluster: Cluster;
let server: ServerProcess;
let command: BerthCommand;
let folder: string;
/** Kubeconfig of the person, in a folder that does not exist before the first sign-in. */
let kubeconfig: string;
let sessions: string;
/** File with the private authorities of the provider and of the HTTP API. */
let authorities: string;

beforeAll(async () => {
  provider = await IdentityProvider.start(ACCOUNTS);
  const { issuer, authority } = provider;
  const configuration = authenticationConfiguration({ issuer, authority, client: CLIENT, hardened: true });
  cluster = await startCluster({
    name: `cli-signin-${process.pid}`,
    authentication: stringify(configuration),
  });
  folder = await mkdtemp(join(tmpdir(), 'berth-signin-'));
  const trusted = join(folder, 'provider.pem');
  await writeFile(trusted, authority);
  server = await cluster.startServer({
    config: { cluster: { issuer, clientID: CLIENT } },
    environment: { NODE_EXTRA_CA_CERTS: trusted },
  });
  const binding = ['rolebinding', 'devs', '-n', namespace, '--clusterrole=berth-role-dev'];
  await cluster.kubectl(['create', ...binding, '--group=oidc:devs']);
  kubeconfig = join(folder, 'absent', 'config');
  authorities = join(folder, 'authorities.pem');
  await writeFile(authorities, `${authority}\n${server.authority}`);
  command = await BerthCommand.make(kubeconfig);
  command.configure(`apiURL: ${server.url}\n`);
  sessions = join(command.settings, 'sessions');
});

afterAll(async () => {
  await command?.[Symbol.asyncDispose]();
  await server?.process.stop();
  await cluster?.stop();
  await provider?.close();
  await rm(folder, { recursive: true, force: true });
});

beforeEach(() => {
  provider.idTokenSeconds = HOUR_SECONDS;
});

interface Person {
  readonly account?: keyof typeof ACCOUNTS;
  readonly cancels?: boolean;
  /** Flags besides the authorities. */
  readonly flags?: readonly string[];
  /** Called with the address for the browser. */
  readonly before?: (address: string) => Promise<void>;
  readonly kubeconfig?: string;
}

/** Signs in as a person does, with a browser that shows the pages of the provider. */
async function login({ account = 'dev', cancels, flags = [], before, ...rest }: Person = {}) {
  const shown = Promise.withResolvers<string>();
  const onError = (written: string) => {
    const [, address] = /^ {2}(https:\S+)\n/m.exec(written) ?? [];
    void (address !== undefined && shown.resolve(address));
  };
  const args = ['login', '--certificate-authority', authorities, ...flags];
  const result = command.run(args, { ...rest, onError, environment: { BROWSER: 'true' } });
  const pages = async () => {
    // A sign-in that fails early shows no address. After an address was shown, the browser reads its last page to the end.
    const address = await Promise.race([shown.promise, result.then(() => undefined)]);
    if (address === undefined) {
      return '';
    }
    await before?.(address);
    const end = await visitPages(provider, address, { account, cancels: cancels === true });
    return end.protocol === 'http:' ? await (await fetch(end)).text() : '';
  };
  const page = await pages();
  return { ...(await result), page };
}

async function berth(args: readonly string[], options?: CommandOptions): Promise<CommandResult> {
  return await command.run(args, options);
}

/** Returns the path and the content of the only session. */
async function session() {
  const [name = ''] = await readdir(sessions);
  const path = join(sessions, name);
  return { path, content: JSON.parse(await readFile(path, 'utf8')) as Record<string, string> };
}

/** Makes the token of the session as old as if nobody had used it for an hour. */
async function expire(): Promise<void> {
  const { path, content } = await session();
  await writeFile(path, JSON.stringify({ ...content, end: 0 }));
}

async function plugin(): Promise<CommandResult> {
  return await berth(['credential', '--session', (await session()).path]);
}

function tokenIn({ out }: CommandResult): string {
  return (JSON.parse(out) as { status: { token: string } }).status.token;
}

async function modeOf(path: string): Promise<number> {
  return (await stat(path)).mode & 0o777;
}

describe('a person with a browser', () => {
  it('signs in, and requests of others to the port change nothing', async () => {
    const answers: number[] = [];
    const { code, out, err, page } = await login({
      before: async (address) => {
        const back = new URL(new URL(address).searchParams.get('redirect_uri') ?? '');
        expect(back.href).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/callback$/);
        const tries = [`${back.href}?state=x&code=y`, `${back.href}?error=access_denied`, `${back.origin}/`];
        answers.push(...(await Promise.all(tries.map(async (url) => (await fetch(url)).status))));
      },
    });
    expect([code, out]).toEqual([
      0,
      `Signed in as dev@berth.test. The context "berth" of ${kubeconfig} is now the current context\n`,
    ]);
    expect(answers).toEqual([400, 400, 404]);
    expect(page).toContain('You are signed in');
    const { path, content } = await session();
    for (const text of [out, err, page, await readFile(kubeconfig, 'utf8')]) {
      expect(text).not.toContain(content['refreshToken']);
      expect(text).not.toContain(content['idToken']);
    }
    expect(await Promise.all([kubeconfig, path, sessions].map(modeOf))).toEqual([0o600, 0o600, 0o700]);
  });

  it('works with the command and with kubectl, and gets the token alone', async () => {
    const listed = await berth(['vm', 'list', '-o', 'json']);
    expect([listed.code, listed.out, listed.err]).toEqual([0, '[]\n', '']);
    const { stdout } = await cluster.kubectl(['--kubeconfig', kubeconfig, 'auth', 'whoami', '-o', 'json']);
    expect(JSON.parse(stdout).status.userInfo).toMatchObject({ username: 'dev@berth.test', uid: 'dev' });
    const { content } = await session();
    expect(await berth(['user', 'get-token'])).toEqual({ code: 0, out: `${content['idToken']}\n`, err: '' });
  });
});

describe('a session', () => {
  it('gets another token each time that one ends', async () => {
    provider.idTokenSeconds = SHORT_SECONDS;
    await expire();
    const tokens = new Set<string>();
    const isRenewedTwice = async () => {
      const token = tokenIn(await plugin());
      tokens.add(token);
      const listed = await berth(['vm', 'list']);
      expect([listed.code, listed.err]).toEqual([0, `There are no VMs in namespace ${namespace}\n`]);
      // On a busy machine, a token may end before the command has sent it. Then the next attempt gets another one.
      return tokens.size >= 3;
    };
    await waitFor('three tokens', isRenewedTwice, { deadlineMilliseconds: TOKENS_MILLISECONDS });
  });

  it('survives plug-ins that renew it at the same time', async () => {
    for (let index = 0; index < 2; index += 1) {
      await expire();
      const results = await Promise.all(Array.from({ length: PLUGINS }, plugin));
      expect(results.map(({ code, err }) => [code, err])).toEqual(results.map(() => [0, '']));
      expect(new Set(results.map(tokenIn)).size).toBe(1);
    }
  });

  it('outlasts a provider that is away, and says so', async () => {
    await expire();
    await provider.close();
    const away = await plugin();
    expect([away.code, away.out]).toEqual([5, '']);
    expect(away.err).toMatch(/^error: The identity provider https:\S+ does not answer: .*Check the address/);
    const listed = await berth(['vm', 'list']);
    expect([listed.code, listed.err]).toEqual([5, expect.stringContaining('does not answer')]);
    await provider.listen();
    expect((await plugin()).code).toBe(0);
  });

  it('ends everywhere when the person signs out', async () => {
    const { path, content } = await session();
    const { code, out } = await berth(['logout']);
    expect([code, out]).toEqual([0, `Signed out. Removed the context "berth" of ${kubeconfig}\n`]);
    expect(await readdir(sessions)).toEqual([]);
    expect(parse(await readFile(kubeconfig, 'utf8'))).toMatchObject({
      clusters: [],
      contexts: [],
      users: [],
    });
    // A copy of the session is worth nothing, because the provider knows.
    await writeFile(path, JSON.stringify({ ...content, end: 0 }));
    const copied = await berth(['credential', '--session', path]);
    expect([copied.code, copied.err]).toEqual([
      3,
      expect.stringContaining('The session has ended. Sign in again: berth login'),
    ]);
    expect(copied.err).not.toContain(content['refreshToken']);
    await rm(path);
    expect((await berth(['user', 'logout'])).out).toContain('You were not signed in');
  });
});

describe('a sign-in that fails writes nothing and says what to do', () => {
  let before: string;

  beforeEach(async () => {
    before = await readFile(kubeconfig, 'utf8');
  });

  afterEach(async () => {
    expect(await readdir(sessions)).toEqual([]);
    expect(await readFile(kubeconfig, 'utf8')).toBe(before);
  });

  it.each<[string, Person, number, RegExp]>([
    ['a person who refuses', { cancels: true }, 3, /The sign-in was refused\. .*says access_denied/],
    [
      'a token for another client',
      { flags: ['--client-id', OTHER_CLIENT] },
      3,
      /^error: Unauthorized: the API server \S+ refuses your token\. Ask an admin to compare issuer, client ID/m,
    ],
    ['an unverified address', { account: 'unverified' }, 3, /email address in the token is not verified/],
    ['an unknown client', { flags: ['--client-id', 'nobody', '--device'] }, 1, /Check the client ID/],
    ['another issuer', { flags: ['--issuer', 'https://127.0.0.1:1'] }, 5, /127\.0\.0\.1:1 does not answer/],
    ['an issuer without TLS', { flags: ['--issuer', 'http://127.0.0.1:1'] }, 2, /must be an https address/],
    ['another server', { flags: ['--api-url', 'https://127.0.0.1:1'] }, 5, /The HTTP API .* does not answer/],
  ])('of %s', async (_, person, code, expected) => {
    const result = await login(person);
    expect([result.code, result.out]).toEqual([code, '']);
    expect(result.err).toMatch(expected);
  });

  it('of a token that lives too long', async () => {
    provider.idTokenSeconds = HOUR_SECONDS + 60;
    const { code, err } = await login();
    expect([code, err]).toEqual([3, expect.stringContaining('Shorten the lifetime of ID tokens')]);
  });

  it('of a private authority that nobody named', async () => {
    const { code, err } = await berth(['login']);
    expect([code, err]).toEqual([1, expect.stringMatching(/is not trusted: .*--certificate-authority/)]);
  });
});

it('a person signs in by a code on another machine, and the HTTP API is not needed', async () => {
  const file = join(folder, 'device');
  const admin = await readFile(cluster.kubeconfig, 'utf8');
  const other = `# mine\n${admin.replaceAll('berth', 'admin')}`;
  await writeFile(file, other, { mode: 0o644 });
  command.configure('aliases: {context: people}\n');
  const { code, out, err } = await login({
    kubeconfig: file,
    flags: ['--device', '--issuer', provider.issuer, '--client-id', CLIENT],
  });
  expect([code, out]).toEqual([0, expect.stringMatching(/^Signed in as dev@berth\.test\. .*"people"/)]);
  expect(err).toMatch(/Enter the code [A-Z]{4}-[A-Z]{4}, or /);
  expect((await berth(['vm', 'list'], { kubeconfig: file })).code).toBe(0);
  const changed = await readFile(file, 'utf8');
  expect(changed).toMatch(/^# mine\n/);
  expect(parse(changed)).toMatchObject({ 'current-context': 'people', contexts: [{ name: 'admin' }, {}] });
  expect(await modeOf(file)).toBe(0o600);
  await berth(['logout'], { kubeconfig: file });
  const { 'current-context': _current, ...rest } = parse(other);
  expect(parse(await readFile(file, 'utf8'))).toEqual(rest);
});

describe('a token that the user brings', () => {
  beforeAll(() => command.configure(`apiURL: ${server.url}\n`));

  it('is stored, sent and shown', async () => {
    const [token, flags] = [provider.forge('dev', {}), ['--certificate-authority', authorities]];
    expect(await berth(['user', 'set-token', token, ...flags])).toEqual({
      code: 0,
      out: `Stored the token. The context "berth" of ${kubeconfig} is now the current context\n`,
      err: '',
    });
    expect((await berth(['vm', 'list', '-o', 'json'])).out).toBe('[]\n');
    expect((await berth(['user', 'get-token'])).out).toBe(`${token}\n`);
  });

  it('is named as expired by each command', async () => {
    command.configure('');
    const past = Math.floor(Date.now() / 1000) - HOUR_SECONDS;
    await berth(['user', 'set-token', provider.forge('dev', { iat: past - HOUR_SECONDS, exp: past })]);
    const expected = /Unauthorized: The token expired at .*Sign in again: berth login\n$/;
    expect(await berth(['vm', 'list'])).toEqual({ code: 3, out: '', err: expect.stringMatching(expected) });
    const { code, out } = await berth(['user', 'get-token']);
    expect([code, out]).toEqual([3, '']);
    const version = await berth(['version']);
    expect(version.err).toMatch(
      /^The versions of the cluster are not known: Unauthorized: The token expired at \S+ .*\n$/,
    );
  });

  it('replaces no credentials of another program', async () => {
    const before = await readFile(cluster.kubeconfig, 'utf8');
    const { code, err } = await berth(['user', 'set-token', 'a'], { kubeconfig: cluster.kubeconfig });
    expect([code, err]).toEqual([2, expect.stringContaining('has other credentials, which would be lost')]);
    expect(await readFile(cluster.kubeconfig, 'utf8')).toBe(before);
  });

  it('with another form is refused and not repeated', async () => {
    const { code, err } = await berth(['user', 'set-token', 'se cret']);
    expect([code, err]).toEqual([2, expect.not.stringContaining('cret')]);
  });
});

describe('a person with the console', () => {
  const verifier = 'v'.repeat(43);
  const state = 's'.repeat(43);
  const nonce = 'n'.repeat(43);
  let api: HTTPClient;

  beforeAll(() => {
    provider.registerPage(`${server.url}/console/`);
    api = new HTTPClient(server);
  });

  afterAll(async () => {
    provider.registerPage(undefined);
    await api.close();
  });

  /** Returns the address to which the provider sends the browser after a sign-in. */
  async function visit(): Promise<string> {
    const { body } = await api.call('/console/sign-in');
    expect(body).toMatchObject({ clientID: CLIENT, scope: 'openid email groups' });
    const url = new URL(body.address);
    const parameters = {
      response_type: 'code',
      client_id: body.clientID,
      redirect_uri: `${server.url}/console/`,
      scope: body.scope,
      state,
      nonce,
      code_challenge: createHash('sha256').update(verifier).digest('base64url'),
      code_challenge_method: 'S256',
    };
    Object.entries(parameters).forEach(([name, value]) => url.searchParams.set(name, value));
    return (await visitPages(provider, url.href, { account: 'dev' })).href;
  }

  async function exchange(body: object) {
    return await api.call('/console/sign-in', { method: 'POST', body });
  }

  it('gets a token for the answer of the provider, once', async () => {
    const answer = { address: await visit(), verifier, state, nonce };
    const { status, body } = await exchange(answer);
    expect(status).toBe(200);
    const session = await api.call('/console/session', { token: body.token });
    expect(session.body).toMatchObject({ username: 'dev@berth.test' });
    const again = await exchange(answer);
    expect([again.status, again.body.message]).toEqual([400, expect.stringContaining('invalid_grant')]);
  });

  it.each([
    ['the secret', { verifier: 'x'.repeat(43) }, 400, /invalid_grant/],
    ['the state', { state: 'x'.repeat(43) }, 502, /state/],
    ['the nonce', { nonce: 'x'.repeat(43) }, 502, /nonce/],
  ])('gets no token if %s is that of another sign-in', async (_, change, status, message) => {
    const { status: got, body } = await exchange({
      address: await visit(),
      verifier,
      state,
      nonce,
      ...change,
    });
    expect([got, body.message]).toEqual([status, expect.stringMatching(message)]);
    expect(body).not.toHaveProperty('token');
  });

  it.each([
    [{ verifier: 'short' }, /verifier: must be/],
    [{ address: 'file:///etc/passwd' }, /address/],
    [{ address: `https://a.example/?code=${'x'.repeat(5_000)}` }, /address: must have at most 4096/],
    [{ issuer: 'https://evil.example' }, /issuer/],
  ])('is refused with %j', async (change, message) => {
    const body = {
      address: `${server.url}/console/?code=x&state=${state}`,
      verifier,
      state,
      nonce,
      ...change,
    };
    const answer = await exchange(body);
    expect([answer.status, answer.body.message]).toEqual([422, expect.stringMatching(message)]);
  });

  it('is told that the provider is away', async () => {
    const address = await visit();
    await provider.close();
    try {
      const { status, body } = await exchange({ address, verifier, state, nonce });
      expect([status, body.message]).toEqual([
        502,
        expect.stringContaining('The identity provider gave no answer'),
      ]);
    } finally {
      await provider.listen();
    }
  });
});
