/** Annotations of Berth's objects that admission policies protect, as a real API server decides. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ANSWER_BY_ANNOTATION, CREATED_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { IMAGE } from '../fixtures/vms.ts';
import { admissionOf, AS_ADMIN, untilAllowed } from '../support/admission.ts';
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
  await cluster.kubectl([...role, '--clusterrole=edit', `--user=${AUTHOR}`]);
  await untilAllowed(cluster, AS_AUTHOR, ['create', 'vms.berth.dev', '-n', namespace]);
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

describe('the time until which somebody takes the answer of a deployment', () => {
  it.for(['', '0', 'soon', '2100-02-30T00:00:00Z', '2100-01-01 00:00:00Z', '2100-01-01T00:00:00z'])(
    'is a time in RFC 3339, and not "%s"',
    async (text) => {
      await expectRefused(manifest('VM', 'x', { [ANSWER_BY_ANNOTATION]: text }), AS_AUTHOR);
    },
  );

  it('is set when the VM is created, and can later only be removed', async () => {
    await expectCreated(manifest('VM', 'waits', { [ANSWER_BY_ANNOTATION]: UNTIL }), AS_AUTHOR);
    const waits = ['vm', 'waits', '-n', namespace];
    const says = 'only when the VM is created';
    await expectChangeRefused(waits, { [ANSWER_BY_ANNOTATION]: '2100-01-01T00:00:00Z' }, says);
    const removed = { metadata: { annotations: { [ANSWER_BY_ANNOTATION]: null } } };
    expect(await patch(waits, AS_AUTHOR, removed)).toMatchObject({ code: 0 });
    await expectChangeRefused(waits, { [ANSWER_BY_ANNOTATION]: UNTIL }, says);
  });
});
