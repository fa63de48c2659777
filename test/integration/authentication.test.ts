/** Tokens of a real identity provider at an API server with the configuration that hack/authentication.ts prints. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { authenticationConfiguration } from '../../hack/authentication.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { requestToken } from '../../hack/cluster/tokens.ts';
import { waitFor } from '../../hack/wait.ts';
import { KubeClient } from '../../kube/client.ts';
import { type Connection, loadConnection } from '../../kube/credentials.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { Transport } from '../../kube/transport.ts';
import { CLIENT, IdentityProvider, OTHER_CLIENT } from '../worlds/provider.ts';
import { signIn, signInByDevice } from '../worlds/signin.ts';
import { HTTPClient } from '../wires/httpapi.ts';

const ACCOUNTS = {
  dev: { groups: ['devs', 'others'] },
  custom: { groups: ['others'] },
  grouplist: { groups: [] },
  pretender: { groups: ['system:masters', 'berth:cluster-admins', 'devs'] },
  groupless: {},
  textual: { groups: 'devs' },
  mixed: { groups: ['others', 7] },
  unverified: { groups: ['devs'], email_verified: false },
  system: { groups: ['devs'], email: 'system:admin' },
  /** Has the name of a user of the other provider as its address. */
  twin: { groups: ['devs'], email: 'second:dev@berth.test' },
};
type Account = keyof typeof ACCOUNTS;
type Profile = 'open' | 'hardened';
const PROFILES: Profile[] = ['open', 'hardened'];
const ADMINS = 'berth:cluster-admins';
/** Prefixes of the users and groups of each provider. */
const USERS = { open: '', hardened: 'second:' };
const GROUPS = { open: 'oidc:', hardened: 'second:' };
const EVERYBODY = 'system:authenticated';
/** Time until the API server asks again for a provider that was away at its start. It asks every 10 s. */
const DISCOVERY_MILLISECONDS = 60_000;

let providers: Record<Profile, IdentityProvider>;
let cluster: Cluster;
let server: Connection;

beforeAll(async () => {
  providers = {
    open: await IdentityProvider.start(ACCOUNTS),
    hardened: await IdentityProvider.start(ACCOUNTS),
  };
  // One API server takes both profiles, each with a provider of its own.
  const profile = ({ issuer, authority }: IdentityProvider, choice: object) =>
    authenticationConfiguration({ issuer, authority, client: CLIENT, ...choice });
  const open = profile(providers.open, { managedGroups: ['devs', 'admins'] });
  const prefixes = { userPrefix: 'second:', groupPrefix: 'second:' };
  const authentication = stringify(
    profile(providers.hardened, { hardened: true, beside: open, ...prefixes }),
  );
  cluster = await startCluster({ name: `authentication-${process.pid}`, authentication });
  const { server: address, certificateAuthority } = await loadConnection({
    kubeconfigPath: cluster.kubeconfig,
  });
  server = { server: address, certificateAuthority };
});

afterAll(async () => {
  await cluster?.stop();
  await Promise.all(PROFILES.map((profile) => providers[profile].close()));
});

interface User {
  username: string;
  uid: string;
  groups: string[];
}

/** Returns the user that the API server sees, or the message of its refusal with 401. */
async function whoIs(token: string): Promise<User | string> {
  const transport = new Transport({ ...server, token }, { metrics: createMetrics() });
  try {
    const path = '/apis/authentication.k8s.io/v1/selfsubjectreviews';
    const review = { apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview' };
    const { status, body } = await new KubeClient(transport).raw('POST', path, { body: review });
    if (status === 201) {
      const { username, uid, groups } = (body as { status: { userInfo: User } }).status.userInfo;
      return { username, uid, groups: groups.toSorted() };
    }
    expect(status).toBe(401);
    return (body as { message: string }).message;
  } finally {
    await transport.close();
  }
}

/** Returns the reason of a refusal, which only callers with rights see. */
async function causeOf(token: string): Promise<string> {
  const { body } = await cluster.client().raw('POST', '/apis/authentication.k8s.io/v1/tokenreviews', {
    body: { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenReview', spec: { token } },
  });
  return (body as { status: { error?: string } }).status.error ?? '';
}

async function signInWithLife(
  provider: IdentityProvider,
  account: Account,
  seconds: number,
): Promise<string> {
  provider.idTokenSeconds = seconds;
  try {
    return await signIn(provider, account);
  } finally {
    provider.idTokenSeconds = 3600;
  }
}

function now(): number {
  return Math.floor(Date.now() / 1000);
}

describe('an accepted token', () => {
  it.each([
    ['a browser', signIn],
    ['a device', signInByDevice],
  ])('of %s makes its person known by email, id and groups', async (_, method) => {
    for (const profile of PROFILES) {
      expect(await whoIs(await method(providers[profile], 'dev'))).toEqual({
        username: `${USERS[profile]}dev@berth.test`,
        uid: 'dev',
        groups: [`${GROUPS[profile]}devs`, `${GROUPS[profile]}others`, EVERYBODY].toSorted(),
      });
    }
  });

  it.each<[Account, string[]]>([
    ['custom', ['others']],
    ['grouplist', []],
  ])(
    'of %s, without a managed group, makes a cluster administrator only where that is wanted',
    async (account, groups) => {
      const tokens = {
        open: await signIn(providers.open, account),
        hardened: await signIn(providers.hardened, account),
      };
      const own = (profile: Profile) => groups.map((group) => `${GROUPS[profile]}${group}`);
      expect(await whoIs(tokens.open)).toMatchObject({ groups: [ADMINS, ...own('open'), EVERYBODY] });
      expect(await whoIs(tokens.hardened)).toMatchObject({ groups: [...own('hardened'), EVERYBODY] });
    },
  );

  it('gives no group of the cluster or of Berth that the provider names', async () => {
    for (const profile of PROFILES) {
      const named = ['berth:cluster-admins', 'devs', 'system:masters'];
      const groups = [...named.map((group) => `${GROUPS[profile]}${group}`), EVERYBODY].toSorted();
      expect(await whoIs(await signIn(providers[profile], 'pretender'))).toMatchObject({ groups });
    }
  });

  it('names no user of another provider', async () => {
    expect(await whoIs(await signIn(providers.open, 'twin'))).toBe('Unauthorized');
    expect(await whoIs(await signIn(providers.hardened, 'twin'))).toMatchObject({
      username: 'second:second:dev@berth.test',
    });
  });

  it('may come from a provider whose clock differs a little', async () => {
    const { open } = providers;
    expect(await whoIs(open.forge('dev', { nbf: now() + 30 }))).toMatchObject({ uid: 'dev' });
    expect(await whoIs(open.forge('dev', { iat: now() + 600, exp: now() + 4200 }))).toMatchObject({
      uid: 'dev',
    });
  });
});

type Maker = (provider: IdentityProvider, other: IdentityProvider) => string | Promise<string>;

it('of a user of the system is refused, and with a prefix it is another user', async () => {
  const token = await signIn(providers.open, 'system');
  expect(await whoIs(token)).toBe('Unauthorized');
  expect(await causeOf(token)).toContain('no users of the system');
  const username = 'second:system:admin';
  expect(await whoIs(await signIn(providers.hardened, 'system'))).toMatchObject({ username });
});

describe.each(PROFILES)('in the %s profile, a token', (profile) => {
  it.each<[string, Maker, string]>([
    ['of 61 minutes', (provider) => signInWithLife(provider, 'dev', 3660), 'lives longer than one hour'],
    ['without groups', (provider) => signIn(provider, 'groupless'), 'no such key: groups'],
    ['with a text for the groups', (provider) => signIn(provider, 'textual'), 'is no list of names'],
    ['with a group that is no text', (provider) => signIn(provider, 'mixed'), 'is no list of names'],
    ['for another program', (provider) => signIn(provider, 'dev', OTHER_CLIENT), 'audience'],
    ['of an unverified address', (provider) => signIn(provider, 'unverified'), 'empty username'],
    [
      'of yesterday',
      (provider) => provider.forge('dev', { iat: now() - 7200, exp: now() - 3601 }),
      'expired',
    ],
    ['for the day after', (provider) => provider.forge('dev', { nbf: now() + 600 }), 'nbf'],
    [
      'without the time of its issue',
      (provider) => provider.forge('dev', { iat: undefined }),
      'no such key: iat',
    ],
    ['with the key of a stranger', ({ issuer }, other) => other.forge('dev', { iss: issuer }), 'signature'],
  ])('%s is refused', async (_, make, cause) => {
    const token = await make(providers[profile], providers[profile === 'open' ? 'hardened' : 'open']);
    expect(await whoIs(token)).toBe('Unauthorized');
    expect(await causeOf(token)).toContain(cause);
  });
});

describe('the HTTP API', () => {
  it('takes the same tokens, and tells the cause of a refusal that the token shows', async () => {
    const { open } = providers;
    const config = { cluster: { issuer: open.issuer, clientID: CLIENT } };
    const { url, authority, process } = await cluster.startServer({ config });
    const api = new HTTPClient({ url, authority });
    const list = async (token: string) =>
      await api.call('/api/v1/namespaces/platform-default/vms', { token });
    try {
      const { status, body } = await list(await signIn(open, 'dev'));
      expect([status, body.message]).toEqual([
        403,
        expect.stringContaining('User "dev@berth.test" cannot list'),
      ]);
      for (const [token, cause] of [
        [await signInWithLife(open, 'dev', 3660), 'longer than one hour'],
        [await signIn(open, 'dev', OTHER_CLIENT), 'another client'],
        [open.forge('dev', { iat: now() - 3600, exp: now() - 1 }), 'expired'],
      ] as const) {
        const refused = await list(token);
        expect([refused.status, refused.body.message]).toEqual([401, 'Unauthorized']);
        expect(refused.headers['www-authenticate']).toContain(cause);
      }
    } finally {
      await api.close();
      await process.stop();
    }
  });
});

describe('keys and outages of the provider', () => {
  it('are noticed: a new key works at once, and a forgotten key no longer', async () => {
    const { open } = providers;
    const [used, unused] = [await signIn(open, 'dev'), open.forge('dev', { jti: 'unused' })];
    expect(await whoIs(used)).toMatchObject({ uid: 'dev' });
    await open.rotateKeys();
    expect(await whoIs(await signIn(open, 'dev'))).toMatchObject({ uid: 'dev' });
    expect(await whoIs(unused)).toBe('Unauthorized');
    expect(await causeOf(unused)).toContain('signature');
  });

  it('leave tokens of known keys valid, and others as soon as the provider is back', async () => {
    const { open } = providers;
    await open.close();
    expect(await whoIs(open.forge('dev', { jti: 'known key' }))).toMatchObject({ uid: 'dev' });
    await open.rotateKeys();
    const token = open.forge('dev', { jti: 'unknown key' });
    expect(await whoIs(token)).toBe('Unauthorized');
    expect(await causeOf(token)).toContain('connection refused');
    await open.listen();
    expect(await whoIs(token)).toMatchObject({ uid: 'dev' });
  });

  it('do not keep an API server from its start, nor other credentials from it', async () => {
    const { open } = providers;
    const account = { namespace: 'berth-system', name: 'berth-operator' };
    const [person, operator] = [
      await signIn(open, 'dev'),
      await requestToken(cluster.client(), account, 600),
    ];
    await open.close();
    await cluster.component('kube-apiserver').restart();
    expect(await whoIs(operator)).toMatchObject({
      username: 'system:serviceaccount:berth-system:berth-operator',
    });
    expect(await whoIs(person)).toBe('Unauthorized');
    await open.listen();
    const isKnown = async () => (await whoIs(person)) !== 'Unauthorized';
    await waitFor('the provider to be found', isKnown, { deadlineMilliseconds: DISCOVERY_MILLISECONDS });
  });
});
