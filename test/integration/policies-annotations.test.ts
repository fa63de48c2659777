/** Annotations of Berth's objects and the life of VMs, which admission policies protect, as a real API server decides. */
import { randomBytes, randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CREATED_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { VM_POOLS } from '../../api/v1alpha1/resources.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { IMAGE } from '../fixtures/vms.ts';
import {
  admissionOf,
  type As,
  AS_ADMIN,
  AS_OPERATOR,
  OPERATOR_USER,
  untilAllowed,
} from '../support/admission.ts';
import { sharedCluster } from '../support/cluster.ts';

const suffix = randomBytes(4).toString('hex');
const namespace = `platform-annotations-${suffix}`;
const AUTHOR = `author-${suffix}@example.com`;
const AS_AUTHOR = [`--as=${AUTHOR}`];
const UNTIL = '2100-01-01T00:00:00.000Z';

let cluster: Cluster;
const { expectRefused, expectAccepted, expectCreated, patch } = admissionOf(() => cluster);

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  const role = ['create', 'rolebinding', 'author', '-n', namespace];
  await cluster.kubectl([...role, '--clusterrole=edit', `--user=${AUTHOR}`, `--user=${OPERATOR_USER}`]);
  await untilAllowed(cluster, AS_OPERATOR, ['create', 'vms.berth.dev', '-n', namespace]);
});

afterAll(async () => {
  await cluster?.kubectl(['delete', 'namespace', namespace, '--wait=false']);
});

const SPECS: Readonly<Record<string, object>> = {
  VM: { image: IMAGE },
  VMConfig: { image: IMAGE },
  Image: { source: { empty: { size: '1Gi' } } },
  ISO: { source: { http: { url: 'https://example.com/x.iso', sha256: 'a'.repeat(64) } } },
  Emulator: { vmName: 'x' },
  ImageCacheEntry: { reference: IMAGE },
};

function manifest(kind: string, name: string, annotations: Record<string, string>): string {
  const metadata = { name, namespace, annotations };
  return JSON.stringify({ apiVersion: 'berth.dev/v1alpha1', kind, metadata, spec: SPECS[kind] });
}

async function expectChangeRefused(
  target: readonly string[],
  annotations: object,
  says: string,
  as = AS_ADMIN,
) {
  const { code, stderr } = await patch(target, as, { metadata: { annotations } });
  expect({ code, stderr }).toMatchObject({ code: 1, stderr: expect.stringContaining(says) });
}

describe('the author of an object', () => {
  it.for(Object.keys(SPECS))('is nobody else than the user who creates it: %s', async (kind) => {
    const foreign = manifest(kind, 'x', { [CREATED_BY_ANNOTATION]: AUTHOR });
    await expectRefused(foreign, AS_ADMIN, CREATED_BY_ANNOTATION, 'may write only the own user name');
    await expectAccepted(manifest(kind, 'x', {}), AS_ADMIN);
  });

  it('stays the same: nobody adds, changes or removes it', async () => {
    await expectRefused(manifest('VM', 'own', { [CREATED_BY_ANNOTATION]: '' }), AS_AUTHOR, 'own user name');
    await expectCreated(manifest('VM', 'own', { [CREATED_BY_ANNOTATION]: AUTHOR }), AS_AUTHOR);
    await expectCreated(manifest('VM', 'nobodys', {}), AS_AUTHOR);
    const own = ['vm', 'own', '-n', namespace];
    await expectChangeRefused(own, { [CREATED_BY_ANNOTATION]: 'admin' }, 'is immutable');
    await expectChangeRefused(own, { [CREATED_BY_ANNOTATION]: null }, 'is immutable');
    const nobodys = ['vm', 'nobodys', '-n', namespace];
    await expectChangeRefused(nobodys, { [CREATED_BY_ANNOTATION]: 'admin' }, 'is immutable');
    await expectChangeRefused(own, { [CREATED_BY_ANNOTATION]: null }, 'is immutable', AS_AUTHOR);
    await expectChangeRefused(nobodys, { [CREATED_BY_ANNOTATION]: AUTHOR }, 'is immutable', AS_AUTHOR);
    const other = { metadata: { annotations: { 'example.com/other': 'x' } }, spec: { cpu: 3 } };
    expect(await patch(own, AS_ADMIN, other)).toMatchObject({ code: 0 });
  });
});

describe('the life of a VM', () => {
  const POOL = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VMPool',
    name: 'warm',
    uid: '',
    controller: true,
  };
  const OTHER_OWNER = { apiVersion: 'v1', kind: 'ConfigMap', name: 'x', uid: randomUUID() };

  function vm(name: string, spec: object, ownerReferences: object[] = []): string {
    const metadata = { name, namespace, ownerReferences };
    return JSON.stringify({
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'VM',
      metadata,
      spec: { image: IMAGE, ...spec },
    });
  }

  beforeAll(async () => {
    // The garbage collector deletes a VM whose owner does not exist.
    const spec = { replicas: 0, template: { spec: { image: IMAGE } } };
    const pool = await cluster.client().create(VM_POOLS, { metadata: { name: POOL.name, namespace }, spec });
    POOL.uid = pool.metadata.uid ?? '';
  });

  const target = (name: string) => ['vm', name, '-n', namespace];
  const claim = (by: string, more: object = {}) => ({
    metadata: {
      ownerReferences: null,
      labels: { 'berth.dev/claimed-from': POOL.name },
      annotations: { 'berth.dev/claimed-by': by },
      ...more,
    },
    spec: { aliveUntil: UNTIL },
  });

  async function expectPatched(name: string, body: object, says?: string, as: As = AS_AUTHOR): Promise<void> {
    const { code, stderr } = await patch(target(name), as, body);
    expect({ code, stderr }).toMatchObject(
      says === undefined ? { code: 0 } : { code: 1, stderr: expect.stringContaining(says) },
    );
  }

  it.for([
    '',
    '0',
    'soon',
    '2100-02-30T00:00:00Z',
    '2100-01-01 00:00:00Z',
    '2100-01-01T00:00:00z',
    '2100-01-01T00:00:00,5Z',
  ])('ends at a time in RFC 3339, and not at "%s"', async (aliveUntil) => {
    const { code, stderr } = await cluster.kubectl(['create', ...AS_AUTHOR, '-f', '-'], {
      input: vm('x', { aliveUntil }),
      allowFailure: true,
    });
    expect({ code, stderr }).toMatchObject({ code: 1, stderr: expect.stringContaining('aliveUntil') });
  });

  it('begins with the VM, becomes longer or endless, and is never shortened or added', async () => {
    await expectCreated(vm('held', { aliveUntil: UNTIL }), AS_AUTHOR);
    await expectPatched(
      'held',
      { spec: { aliveUntil: '2099-12-31T23:59:59Z' } },
      'can only be moved later or removed',
    );
    await expectPatched('held', { spec: { aliveUntil: '2100-01-02T00:00:00+01:00' } });
    await expectPatched('held', { spec: { aliveUntil: null } });
    await expectPatched('held', { spec: { aliveUntil: UNTIL } }, 'only when the VM is created or claimed');
    await expectPatched(
      'held',
      { spec: { aliveUntil: UNTIL } },
      'only when the VM is created or claimed',
      AS_OPERATOR,
    );
  });

  it('is set by a claim, which takes the VM out of its pool for ever', async () => {
    await expectRefused(
      vm('member', {}, [POOL]),
      AS_AUTHOR,
      'only the operator of Berth makes VMs of a VMPool',
    );
    await expectCreated(vm('member', {}, [POOL]), AS_OPERATOR);
    const says = 'can only be removed as a whole';
    await expectPatched('member', { spec: { aliveUntil: UNTIL } }, 'only when the VM is created or claimed');
    await expectPatched('member', { metadata: { ownerReferences: null } }, says);
    await expectPatched('member', claim('somebody-else'), says);
    await expectPatched('member', claim(AUTHOR, { labels: { 'berth.dev/claimed-from': 'another' } }), says);
    await expectPatched('member', { metadata: { ownerReferences: [{ ...POOL, controller: false }] } }, says);
    await expectPatched('member', { metadata: { ownerReferences: [POOL, OTHER_OWNER] }, spec: { cpu: 3 } });
    await expectPatched('member', claim(AUTHOR));
    for (const by of [AUTHOR, 'somebody-else', null]) {
      const changed = { metadata: { annotations: { 'berth.dev/claimed-by': by } } };
      await expectPatched('member', changed, by === AUTHOR ? undefined : 'only a claim sets it');
    }
    const back = { metadata: { ownerReferences: [POOL] } };
    await expectPatched('member', back, 'no existing VM can become one');
    await expectPatched('member', back, 'no existing VM can become one', AS_OPERATOR);
    await expectPatched('member', { metadata: { ownerReferences: [OTHER_OWNER] } });
  });
});
