/** Objects that name an object of another namespace, created by users with and without the right to read it there. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, type TestContext, test } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import { sharedCluster } from '../support/cluster.ts';
import { waitFor } from '../../hack/wait.ts';
import { tried } from './support/attempts.ts';
import { account, administrator, type Answer, type Account } from './support/accounts.ts';

const suffix = randomBytes(4).toString('hex');
const own = `platform-own-${suffix}`;
const foreign = `platform-foreign-${suffix}`;
const DEFAULT = 'platform-default';
const ROLE = `references-${suffix}`;
const API = '/apis/berth.dev/v1alpha1';
const RIGHTS = '/apis/rbac.authorization.k8s.io/v1';

/** A field that names an object, and the resource that it names. */
interface Reference {
  readonly kind: string;
  readonly plural: string;
  readonly field: string;
  readonly names: string;
  readonly spec: (name: string, namespace?: string) => object;
}

const copy = (kind: string, plural: string): Reference => ({
  kind,
  plural,
  field: 'spec.source.copyOf',
  names: plural,
  spec: (name, namespace) => ({ source: { copyOf: { name, namespace } } }),
});
const CONFIG: Reference = {
  kind: 'VM',
  plural: 'vms',
  field: 'spec.configRef',
  names: 'vmconfigs',
  spec: (name, namespace) => ({ configRef: { name, namespace } }),
};
const ENTRY: Reference = {
  kind: 'ImageCacheEntry',
  plural: 'imagecacheentries',
  field: 'spec.imageRef',
  names: 'images',
  spec: (name, namespace) => ({ imageRef: { name, namespace: namespace ?? DEFAULT } }),
};
/** Fields whose object is in the own namespace if they name no namespace. */
const SHORT = [CONFIG, copy('Image', 'images'), copy('ISO', 'isos')];
const ALL = [...SHORT, ENTRY];

let cluster: Cluster;
let admin: Account;
/** An account with `edit` in its own namespace. It may `get` objects named `shared` in the other namespace. */
let tenant: Account;

beforeAll(async () => {
  cluster = await sharedCluster();
  admin = administrator(cluster);
  await Promise.all([own, foreign].map((namespace) => cluster.createNamespace(namespace)));
  tenant = await account(cluster, own, 'tenant');
  await grant(`${RIGHTS}/namespaces/${own}`, 'ClusterRole', 'edit');
  const named = { resourceNames: ['shared'], verbs: ['get'] };
  const rules = [
    { apiGroups: ['berth.dev'], resources: ['vmconfigs', 'images', 'isos'], ...named },
    // The right to `list` does not replace the right to `get`.
    { apiGroups: ['berth.dev'], resources: ['vmconfigs', 'images', 'isos'], verbs: ['list', 'watch'] },
  ];
  for (const { kind, plural } of [{ kind: 'VMConfig', plural: 'vmconfigs' }, ...SHORT.slice(1)]) {
    const source = { http: { url: 'https://images.example/disk', sha256: 'a'.repeat(64) } };
    const spec = kind === 'VMConfig' ? {} : { source };
    const existing = { apiVersion: 'berth.dev/v1alpha1', kind, metadata: { name: 'secret' }, spec };
    await made(`${API}/namespaces/${foreign}/${plural}`, existing);
  }
  await made(`${RIGHTS}/namespaces/${foreign}/roles`, { metadata: { name: ROLE }, rules });
  await grant(`${RIGHTS}/namespaces/${foreign}`, 'Role', ROLE);
  await waitFor('the rights and the policy to be known', async () => {
    const asked = ALL.map((reference) => create(tenant, reference, reference.spec('shared', foreign)));
    for (const { message } of await Promise.all(asked)) {
      expect(message).toBe('');
    }
    const refused = await create(tenant, CONFIG, CONFIG.spec('secret', foreign));
    return refused.status === 403;
  });
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', own, foreign, '--wait=false']);
  await tenant.close();
});

async function made(path: string, body: object): Promise<void> {
  expect(await admin.send('POST', path, body)).toMatchObject({ status: 201 });
}

async function grant(at: string, kind: 'Role' | 'ClusterRole', name: string): Promise<void> {
  const subjects = [{ kind: 'ServiceAccount', name: 'tenant', namespace: own }];
  const roleRef = { apiGroup: 'rbac.authorization.k8s.io', kind, name };
  await made(`${at}/rolebindings`, { metadata: { name }, roleRef, subjects });
}

function collection({ plural }: Reference): string {
  return `${API}/namespaces/${own}/${plural}`;
}

function object({ kind }: Reference, name: string, spec: object): object {
  return { apiVersion: 'berth.dev/v1alpha1', kind, metadata: { name }, spec };
}

/** Creates the object as a dry run, which passes the whole admission and stores nothing. */
function create(who: Account, reference: Reference, spec: object): Promise<Answer> {
  return who.send('POST', `${collection(reference)}?dryRun=All`, object(reference, 'hostile', spec));
}

function expectRefused(
  context: TestContext,
  what: string,
  { status, message }: Answer,
  ...says: string[]
): void {
  tried(context, what, `HTTP ${status}`);
  expect({ status, message }).toMatchObject({ status: 403 });
  for (const part of ["'berth-references'", tenant.name, ...says]) {
    expect(message).toContain(part);
  }
}

function expectAllowed(context: TestContext, what: string, { status, message }: Answer): void {
  tried(context, what, `HTTP ${status}`);
  expect(message).toBe('');
}

describe.each(ALL)('$field of a new $kind', (reference) => {
  const { field, names } = reference;

  test('is refused without `get` on the named object, whether the object exists or not', async (context) => {
    for (const name of ['secret', 'nowhere', 'shared.more']) {
      const answer = await create(tenant, reference, reference.spec(name, foreign));
      expectRefused(context, `${field} without get`, answer, field, `${names}.berth.dev "${name}"`, foreign);
    }
    for (const namespace of ['kube-system', 'berth-system', 'platform-nowhere']) {
      const answer = await create(tenant, reference, reference.spec('shared', namespace));
      expectRefused(context, `${field} without get`, answer, field, `in namespace "${namespace}"`);
    }
  });

  test('is allowed with `get` on the named object, and to users who may read everything', async (context) => {
    const shared = reference.spec('shared', foreign);
    expectAllowed(context, `${field} with get`, await create(tenant, reference, shared));
    expectAllowed(
      context,
      `${field} with get`,
      await create(admin, reference, reference.spec('secret', foreign)),
    );
  });

  test('is allowed for the default namespace', async (context) => {
    const answer = await create(tenant, reference, reference.spec('any', DEFAULT));
    expectAllowed(context, `${field} in the default namespace`, answer);
  });
});

test.for(ALL)('$field is allowed for the own namespace, written or left out', async (reference, context) => {
  // An ImageCacheEntry must name a namespace.
  for (const namespace of reference === ENTRY ? [own] : [own, undefined]) {
    const answer = await create(tenant, reference, reference.spec('any', namespace));
    expectAllowed(context, `${reference.field} in the own namespace`, answer);
  }
});

test('a cache entry names a Secret of its own namespace, so nobody gains the credentials of others', async (context) => {
  const pullSecretName = 'operator-credentials';
  const answer = await create(tenant, ENTRY, { reference: 'registry.example/a:1', pullSecretName });
  expectAllowed(context, 'spec.pullSecretName', answer);
  const elsewhere = await tenant.send(
    'POST',
    `${API}/namespaces/${foreign}/imagecacheentries`,
    object(ENTRY, 'hostile', { reference: 'registry.example/a:1', pullSecretName }),
  );
  tried(context, 'an entry in another namespace', `HTTP ${elsewhere.status}`);
  expect(elsewhere).toMatchObject({ status: 403 });
});

describe('an existing object', () => {
  const vm = `${API}/namespaces/${own}/vms/granted`;

  beforeAll(async () => {
    await made(collection(CONFIG), object(CONFIG, 'granted', CONFIG.spec('secret', foreign)));
  });

  test('cannot get a reference to another namespace later', async (context) => {
    const moved = await tenant.send('PATCH', vm, { spec: CONFIG.spec('another', foreign) });
    tried(context, 'spec.configRef by a patch', `HTTP ${moved.status}`);
    expect(moved).toMatchObject({ status: 422 });
  });

  test('can still be changed and deleted by users who could not have created it', async (context) => {
    const labelled = await tenant.send('PATCH', vm, { metadata: { labels: { team: 'a' } } });
    expectAllowed(context, 'a label beside a reference', labelled);
    expectAllowed(context, 'removal of a reference', await tenant.send('DELETE', vm));
  });
});
