/**
 * Strangers at VMPools, RunnerSets and VMSnapshots: VMs that claim to be of a pool or a set, claims that lie about their author, and writes
 * to what only Berth writes. The API server, its policies and the roles are real.
 */
import { randomBytes } from 'node:crypto';
import * as fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CLAIMED_BY_ANNOTATION, CLAIMED_FROM_LABEL, POOL_LABEL } from '../../api/v1alpha1/names.ts';
import { poolUidOf } from '../../api/v1alpha1/poolmembers.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { sharedCluster } from '../support/cluster.ts';
import { account, type Account, administrator, type Answer } from './support/accounts.ts';
import { hostileRuns, tried } from './support/attempts.ts';

const suffix = randomBytes(4).toString('hex');
const NAMESPACE = `platform-pools-${suffix}`;
const ELSEWHERE = `platform-elsewhere-${suffix}`;
const API = `/apis/berth.dev/v1alpha1/namespaces/${NAMESPACE}`;
const POOL = 'warm';
const SPEC = { image: 'registry.example/guest:1' };

let cluster: Cluster;
let admin: Account;
/** Has the role of a developer in the namespace of the pool. */
let tenant: Account;
/** Has the same role in another namespace. */
let stranger: Account;
let poolUid: string;

beforeAll(async () => {
  cluster = await sharedCluster();
  admin = administrator(cluster);
  await Promise.all([NAMESPACE, ELSEWHERE].map((namespace) => cluster.createNamespace(namespace)));
  [tenant, stranger] = await Promise.all([developer(NAMESPACE), developer(ELSEWHERE)]);
  const pool = await made('vmpools', POOL, { replicas: 0, template: { spec: SPEC } });
  poolUid = (pool.body as VM).metadata.uid ?? '';
  await made('vms', 'own', SPEC);
  await made('runnersets', 'mac', {
    github: { url: 'https://github.com/acme', credentialSecret: 'github' },
    max: 1,
    configRef: { name: 'mac' },
  });
  await made('vmsnapshots', 'first', { vmName: 'own' });
  await waitFor('the rights', async () => (await tenant.send('GET', `${API}/vms/own`)).status === 200);
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', NAMESPACE, ELSEWHERE, '--wait=false']);
  await tenant?.close();
  await stranger?.close();
});

async function developer(namespace: string): Promise<Account> {
  const who = await account(cluster, namespace, 'dev');
  const binding = ['create', 'rolebinding', 'dev', '-n', namespace, '--clusterrole=berth-role-dev'];
  await cluster.kubectl([...binding, `--serviceaccount=${namespace}:dev`]);
  return who;
}

const KINDS = { vms: 'VM', vmpools: 'VMPool', runnersets: 'RunnerSet', vmsnapshots: 'VMSnapshot' } as const;

function object(plural: keyof typeof KINDS, metadata: object, spec: object): object {
  return { apiVersion: 'berth.dev/v1alpha1', kind: KINDS[plural], metadata, spec };
}

async function made(plural: keyof typeof KINDS, name: string, spec: object): Promise<Answer> {
  const answer = await admin.send('POST', `${API}/${plural}`, object(plural, { name }, spec));
  expect(answer).toMatchObject({ status: 201 });
  return answer;
}

const owner = fc.record({
  apiVersion: fc.constantFrom(
    'berth.dev/v1alpha1',
    'berth.dev/v1',
    'berth.dev.example/v1',
    'xberth.dev/v1alpha1',
    'example.com/v1',
    'v1',
  ),
  kind: fc.constantFrom('VMPool', 'VMPool', 'vmpool', 'VMPools', 'RunnerSet'),
  name: fc.constantFrom(POOL, 'other'),
  controller: fc.boolean(),
});

describe('a VM that names a pool as its owner', () => {
  it('is refused, or is none of its VMs, whether it is new or exists', async (context) => {
    await fc.assert(
      fc.asyncProperty(owner, fc.boolean(), async (reference, isNew) => {
        const metadata = {
          labels: { [POOL_LABEL]: POOL },
          ownerReferences: [{ ...reference, uid: poolUid, blockOwnerDeletion: false }],
        };
        const answer = isNew
          ? await tenant.send(
              'POST',
              `${API}/vms?dryRun=All`,
              object('vms', { ...metadata, name: 'planted' }, SPEC),
            )
          : await tenant.send('PATCH', `${API}/vms/own?dryRun=All`, { metadata });
        const isStored = answer.status < 300;
        tried(
          context,
          `VM with the owner ${reference.kind} of ${reference.apiVersion}`,
          isStored ? 'no VM of the pool' : 'refused',
        );
        expect(isStored ? poolUidOf(answer.body as VM) : undefined).toBeUndefined();
      }),
      hostileRuns(400),
    );
  });
});

describe('a claim', () => {
  const LIES = [
    'admin',
    'system:serviceaccount:kube-system:generic-garbage-collector',
    '',
    `x${' '.repeat(9)}`,
  ];

  it('has the name of its author, whatever owner the VM has named before', async (context) => {
    let count = 0;
    await fc.assert(
      fc.asyncProperty(owner, fc.constantFrom(...LIES), async (reference, by) => {
        count += 1;
        const name = `lie-${count}`;
        const ownerReferences = [{ ...reference, uid: crypto.randomUUID(), blockOwnerDeletion: false }];
        const planted = await tenant.send(
          'POST',
          `${API}/vms`,
          object('vms', { name, ownerReferences }, SPEC),
        );
        const metadata = {
          ownerReferences: null,
          labels: { [CLAIMED_FROM_LABEL]: reference.name },
          annotations: { [CLAIMED_BY_ANNOTATION]: by },
        };
        const claim =
          planted.status < 300 ? await tenant.send('PATCH', `${API}/vms/${name}`, { metadata }) : planted;
        tried(
          context,
          `claim in a foreign name of a VM of a ${reference.kind} of ${reference.apiVersion}`,
          `HTTP ${claim.status}`,
        );
        expect(claim.status).toBeGreaterThanOrEqual(400);
      }),
      hostileRuns(100),
    );
  });
});

describe('strangers', () => {
  const OBJECTS = [`vmpools/${POOL}`, 'runnersets/mac', 'vmsnapshots/first', 'vms/own'] as const;

  it.each(OBJECTS)(
    'of another namespace neither read nor change %s, and learn nothing of it',
    async (path) => {
      const plural = path.split('/')[0] ?? '';
      const answers = await Promise.all([
        stranger.send('GET', `${API}/${path}`),
        stranger.send('GET', `${API}/${plural}`),
        stranger.send('PATCH', `${API}/${path}`, { metadata: { labels: { mine: 'yes' } } }),
        stranger.send('DELETE', `${API}/${path}?dryRun=All`),
        stranger.send('GET', `${API}/${plural}/absent`),
      ]);
      expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 403));
    },
  );

  it.each(OBJECTS)('of the same namespace write no status of %s', async (path) => {
    const status = { conditions: [], replicas: 7, capacity: 1_000, phase: 'Ready' };
    expect((await tenant.send('PATCH', `${API}/${path}/status`, { status })).status).toBe(403);
    const before = (await admin.send('GET', `${API}/${path}`)).body as VM;
    await tenant.send('PATCH', `${API}/${path}`, { status });
    const after = (await admin.send('GET', `${API}/${path}`)).body as VM;
    expect(after.status).toEqual(before.status);
  });
});
