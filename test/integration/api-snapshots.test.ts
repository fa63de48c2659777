/** The API server's rules for VMSnapshots, and for VMs that are reverted to them. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import { sharedCluster } from '../support/cluster.ts';
import { BerthCommand } from '../wires/berth.ts';

const namespace = `platform-snapshots-${randomBytes(4).toString('hex')}`;
const [FIRST, SECOND] = ['2026-01-01T00:00:00Z', '2026-01-02T00:00:00Z'];

let cluster: Cluster;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  await create('VM', 'plain', { image: 'any' });
  await create('VM', 'reverting', { image: 'any', revertTo: 'one', revertRequestedAt: FIRST });
  await create('VMSnapshot', 'one', { vmName: 'reverting' });
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', namespace, '--wait=false']);
});

async function create(kind: string, name: string, spec: object): Promise<void> {
  const manifest = { apiVersion: 'berth.dev/v1alpha1', kind, metadata: { name, namespace }, spec };
  await cluster.kubectl(['create', '--validate=strict', '-f', '-'], { input: JSON.stringify(manifest) });
}

async function patch(resource: string, spec: object): Promise<string> {
  const body = JSON.stringify({ spec });
  const parameters = ['patch', resource, '-n', namespace, '--type=merge', '-p', body, '--dry-run=server'];
  const { code, stderr } = await cluster.kubectl(parameters, { allowFailure: true });
  return code === 0 ? 'accepted' : stderr;
}

it.each([
  ['plain', { revertTo: 'one' }],
  ['reverting', { revertTo: 'another' }],
  ['reverting', { revertTo: null }],
])('VM %s: revertTo cannot change without a new request for a revert: %o', async (name, spec) => {
  const refusal = await patch(`vm/${name}`, spec);
  expect(refusal).toContain('spec.revertTo');
});

it.each([
  ['plain', { revertTo: 'one', revertRequestedAt: FIRST }],
  ['reverting', { revertTo: 'another', revertRequestedAt: SECOND }],
  ['reverting', { revertTo: null, revertRequestedAt: SECOND }],
  ['reverting', { revertRequestedAt: SECOND }],
  ['reverting', { revertTo: null, revertRequestedAt: null }],
])('VM %s: revertTo can change with a new request for a revert: %o', async (name, spec) => {
  expect(await patch(`vm/${name}`, spec)).toBe('accepted');
});

it('a revert names an object that can exist, and comes with a request', async () => {
  const unnamed = { revertTo: 'No Name', revertRequestedAt: SECOND };
  expect(await patch('vm/plain', unnamed)).toContain('spec.revertTo');
  expect(await patch('vm/reverting', { revertRequestedAt: null })).toContain(
    'revertTo needs revertRequestedAt',
  );
});

it.each(['', 'a.b', 'a'.repeat(64)])('no snapshot is of VM "%s"', async (vmName) => {
  await expect(create('VMSnapshot', 'refused', { vmName })).rejects.toThrow('spec.vmName');
});

it('a snapshot stays that of its VM', async () => {
  expect(await patch('vmsnapshot/one', { vmName: 'plain' })).toContain('vmName is immutable');
});

it.each([
  [{ name: 'plain', snapshot: 'one', memory: true }, 'memory must not be set with snapshot'],
  [{ name: 'plain', snapshot: 'No Name' }, 'spec.source.fromVM.snapshot'],
])('no Image is made from %o', async (fromVM, refusal) => {
  await expect(create('Image', 'refused', { source: { fromVM } })).rejects.toThrow(refusal);
});

it('the command makes, lists and deletes snapshots', async () => {
  await using berth = await BerthCommand.make(cluster.kubeconfig);
  const command = async (...args: string[]) =>
    await berth.run(['snapshot', ...args, '--namespace', namespace]);
  expect(await command('create', 'two', '--vm', 'plain')).toMatchObject({
    code: 0,
    out: 'Successfully created snapshot two\n',
  });
  expect((await command('list')).out).toMatch(/^NAME +VM +STATUS .*\none +reverting .*\ntwo +plain /);
  expect(await command('create', 'three', '--vm', 'nobody')).toMatchObject({
    code: 4,
    err: expect.stringContaining('vm "nobody" not found'),
  });
  expect(await command('delete', 'two')).toMatchObject({ code: 0 });
});
