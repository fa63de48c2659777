/** Rules of the kind VMPool: the API server refuses wrong values, and its message names the field and what is allowed. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { VM_POOLS } from '../../api/v1alpha1/resources.ts';
import type { VMPool } from '../../api/v1alpha1/vmpool.ts';
import { messageOf } from '../../base/errors.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { sharedCluster } from '../support/cluster.ts';

const NAMESPACE = 'platform-default';
const NAME = `rules-${process.pid}`;
const SPEC = { image: 'registry.example/guest:1' };
const GOOD = { replicas: 0, template: { spec: SPEC } };

let cluster: Cluster;

beforeAll(async () => {
  cluster = await sharedCluster();
});

afterAll(async () => {
  await cluster?.client().delete(VM_POOLS, { namespace: NAMESPACE, name: NAME });
  await cluster?.disconnect();
});

/** Returns the message with which the API server refuses the pool, or an empty text. */
async function refusal(spec: object, name = NAME, namespace = NAMESPACE): Promise<string> {
  const pool = { metadata: { namespace, name }, spec } as Unsaved<VMPool>;
  return await cluster
    .client()
    .create(VM_POOLS, pool, { dryRun: true, fieldValidation: 'Strict' })
    .then(() => '', messageOf);
}

async function expectRefusal(spec: object, message: string): Promise<void> {
  const text = await refusal(spec);
  expect(text === '').toBe(message === '');
  expect(text).toContain(message);
}

const ONE_SHOT = { mode: 'OneShot' };

it.each([
  [{}, ''],
  [{ replicas: 1_000, maxAgeSeconds: 60, keepFreeSlots: 100_000, readyDeadlineSeconds: 86_400 }, ''],
  [{ update: { type: 'Replace', maxUnavailable: 1_000 }, yieldToWaiting: false }, ''],
  [{ replicas: undefined }, 'spec.replicas: Required value'],
  [{ replicas: 1_001 }, 'must be from 0 to 1000'],
  [{ replicas: -1 }, 'must be from 0 to 1000'],
  [{ replicas: 1.5 }, 'spec.replicas'],
  [{ template: undefined }, 'spec.template: Required value'],
  [{ maxAgeSeconds: 59 }, 'must be from 60 to 31536000'],
  [{ update: { type: 'Later' } }, 'supported values: "OnRefill", "Replace"'],
  [{ update: { maxUnavailable: 0 } }, 'must be from 1 to 1000'],
  [{ keepFreeSlots: -1 }, 'must be from 0 to 100000'],
  [{ readyDeadlineSeconds: 0 }, 'must be from 1 to 86400'],
  [{ mode: 'Claimed' }, 'supported values: "Claim", "OneShot"'],
  [{ minReplicas: 1 }, 'unknown field "spec.minReplicas"'],
  [ONE_SHOT, ''],
  [{ ...ONE_SHOT, maxAgeSeconds: 60 }, 'maxAgeSeconds must not be set with mode OneShot'],
  [{ ...ONE_SHOT, yieldToWaiting: true }, 'yieldToWaiting must not be set with mode OneShot'],
  [{ ...ONE_SHOT, update: { type: 'Replace' } }, 'update.type must be OnRefill with mode OneShot'],
  [
    { ...ONE_SHOT, template: { spec: { ...SPEC, powerState: 'Suspended' } } },
    'template.spec.powerState must be Running with mode OneShot',
  ],
  [
    { ...ONE_SHOT, template: { spec: { ...SPEC, restartPolicy: 'Always' } } },
    'template.spec.restartPolicy must not be Always with mode OneShot',
  ],
])('%j: %s', async (change, message) => {
  await expectRefusal({ ...GOOD, ...change }, message);
});

it.each([
  [{ powerState: 'Stopped', ports: [':22'], hardwareIdentity: 'Consistent' }, ''],
  [{ image: undefined }, 'image'],
  [{ cpu: 0 }, 'must be from 1 to 256'],
  [{ serialNumber: 'ABCDEFGH' }, 'unknown field "spec.template.spec.serialNumber"'],
  [{ aliveUntil: '2030-01-01T00:00:00Z' }, 'unknown field "spec.template.spec.aliveUntil"'],
  [{ restartRequestedAt: '2030-01-01T00:00:00Z' }, 'unknown field "spec.template.spec.restartRequestedAt"'],
  [{ revertRequestedAt: '2030-01-01T00:00:00Z' }, 'unknown field "spec.template.spec.revertRequestedAt"'],
  [{ revertTo: 'one' }, 'unknown field "spec.template.spec.revertTo"'],
  [{ placement: { node: 'host-0' } }, 'unknown field "spec.template.spec.placement.node"'],
  [{ ports: ['8080:22'] }, 'ports of a template must not name a port of the host'],
])('a template with %j: %s', async (change, message) => {
  await expectRefusal({ ...GOOD, template: { spec: { ...SPEC, ...change } } }, message);
});

it.each([
  [{ labels: { team: 'a', 'berth.dev/scale-set': 'mac' }, annotations: { 'example.com/x': 'y' } }, ''],
  [{ labels: { 'berth.dev/pool': 'other' } }, 'keys that begin with berth.dev/ are not allowed'],
  [{ annotations: { 'berth.dev/claimed-by': 'me' } }, 'keys that begin with berth.dev/ are not allowed'],
  [{ labels: { 'two words': 'x' } }, 'each key must be a name of at most 63 characters'],
  [{ labels: { team: 'x'.repeat(64) } }, 'Too long'],
  [{ annotations: { text: 'x'.repeat(4_097) } }, 'Too long'],
  [
    { labels: Object.fromEntries(Array.from({ length: 33 }, (_, number) => [`label-${number}`, ''])) },
    'must have at most 32 items',
  ],
  [{ name: 'one' }, 'unknown field "spec.template.metadata.name"'],
  [{ finalizers: ['example.com/x'] }, 'unknown field "spec.template.metadata.finalizers"'],
])('a template with the metadata %j: %s', async (metadata, message) => {
  await expectRefusal({ ...GOOD, template: { metadata, spec: SPEC } }, message);
});

it('has a name that leaves room for the names of its VMs, and a namespace that Berth serves', async () => {
  expect(await refusal(GOOD, 'x'.repeat(57))).toBe('');
  expect(await refusal(GOOD, 'x'.repeat(58))).toContain('DNS label without dots of at most 57 characters');
  expect(await refusal(GOOD, 'a.b')).toContain('must be a DNS label without dots');
  expect(await refusal(GOOD, NAME, 'default')).toContain('Berth serves only the namespace');
});

it('keeps its mode, and the scale subresource keeps the bounds of replicas', async () => {
  const client = cluster.client();
  const ref = { namespace: NAMESPACE, name: NAME };
  await client.create(VM_POOLS, { metadata: ref, spec: GOOD });
  for (const mode of ['Claim', 'OneShot']) {
    await expect(client.mergePatch(VM_POOLS, ref, { spec: { mode } })).rejects.toThrow('mode is immutable');
  }
  const scale = async (replicas: number) =>
    await client.mergePatch(VM_POOLS, ref, { spec: { replicas } }, { subresource: 'scale' });
  await expect(scale(1_001)).rejects.toThrow('must be from 0 to 1000');
  await expect(scale(-1)).rejects.toThrow('spec.replicas');
});
