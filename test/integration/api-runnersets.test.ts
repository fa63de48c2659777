/** Rules of the kind RunnerSet: the API server refuses wrong values, and its message names the field. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { RUNNER_SETS } from '../../api/v1alpha1/resources.ts';
import type { RunnerSet } from '../../api/v1alpha1/runnerset.ts';
import { messageOf } from '../../base/errors.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { sharedCluster } from '../support/cluster.ts';

const NAMESPACE = 'platform-default';
const NAME = `rules-${process.pid}`;
const github = { url: 'https://github.com/acme', credentialSecret: 'github' };
const GOOD = { github, max: 4, configRef: { name: 'mac' } };

let cluster: Cluster;

beforeAll(async () => {
  cluster = await sharedCluster();
});

afterAll(async () => {
  await cluster?.client().delete(RUNNER_SETS, { namespace: NAMESPACE, name: NAME });
  await cluster?.disconnect();
});

/** Returns the message with which the API server refuses the RunnerSet, or an empty text. */
async function refusal(spec: object, name = NAME, namespace = NAMESPACE): Promise<string> {
  const set = { metadata: { namespace, name }, spec } as Unsaved<RunnerSet>;
  return await cluster
    .client()
    .create(RUNNER_SETS, set, { dryRun: true, fieldValidation: 'Strict' })
    .then(() => '', messageOf);
}

it.each([
  [{}, ''],
  [{ github: { ...github, url: 'https://github.com/acme/app' } }, ''],
  [{ github: { ...github, url: 'https://ghes.example:8443/enterprises/acme' } }, ''],
  [{ github: { ...github, url: 'http://github.com/acme' } }, 'spec.github.url in body should match'],
  [
    { github: { ...github, url: 'https://me:secret@github.com/acme' } },
    'spec.github.url in body should match',
  ],
  [{ github: { ...github, url: 'https://github.com/acme/../x' } }, 'spec.github.url in body should match'],
  [{ github: { ...github, url: 'https://github.com/acme?x=1' } }, 'spec.github.url in body should match'],
  [{ github: { ...github, url: 'https://github.com' } }, 'spec.github.url in body should match'],
  [{ github: { url: github.url } }, 'spec.github.credentialSecret: Required value'],
  [{ github: { ...github, credentialSecret: '../x' } }, 'spec.github.credentialSecret in body should match'],
  [{ github: { ...github, caSecret: 'A' } }, 'spec.github.caSecret in body should match'],
  [{ github: { ...github, name: 'two words' } }, 'spec.github.name in body should match'],
  [{ github: { ...github, name: 'x'.repeat(64) } }, 'spec.github.name: Too long'],
  [{ github: { ...github, labels: [] } }, 'spec.github.labels in body should have at least 1 items'],
  [{ github: { ...github, labels: ['a', 'a'] } }, 'Duplicate value'],
  [{ github: { ...github, labels: ['a b'] } }, 'should match'],
  [{ github: { ...github, runnerGroup: '' } }, 'spec.github.runnerGroup'],
  [{ min: 5 }, 'min must be at most max'],
  [{ min: -1 }, 'must be from 0 to 1000'],
  [{ max: 0 }, 'must be from 1 to 1000'],
  [{ configRef: undefined }, 'exactly one of configRef and template must be set'],
  [{ template: { spec: { image: 'mac' } } }, 'exactly one of configRef and template must be set'],
  [{ configRef: undefined, template: { spec: { image: 'mac', cpu: 4 } } }, ''],
  [
    { configRef: undefined, template: { spec: { cpu: 4 } } },
    'at least one of image, iso and configRef must be set',
  ],
  [
    { configRef: undefined, template: { spec: { image: 'mac', userData: 'x' } } },
    'unknown field "spec.template.spec.userData"',
  ],
  [
    { configRef: undefined, template: { spec: { configRef: { name: 'mac', namespace: 'other' } } } },
    'unknown field "spec.template.spec.configRef.namespace"',
  ],
  [
    {
      configRef: undefined,
      template: { metadata: { labels: { 'berth.dev/scale-set': 'x' } }, spec: { image: 'mac' } },
    },
    'keys that begin with berth.dev/ are not allowed',
  ],
])('%j: %s', async (change, message) => {
  const text = await refusal({ ...GOOD, ...change });
  expect(text === '').toBe(message === '');
  expect(text).toContain(message);
});

it('has a name that leaves room for the names of its VMs, and a namespace that Berth serves', async () => {
  expect(await refusal(GOOD, 'x'.repeat(49))).toContain(
    'must be a DNS label without dots of at most 48 characters',
  );
  expect(await refusal(GOOD, 'a.b')).toContain('must be a DNS label without dots');
  expect(await refusal(GOOD, NAME, 'default')).toContain('Berth serves only the namespace');
});

it('keeps its scale set: only numbers, the VMConfig and the names of Secrets can change', async () => {
  const client = cluster.client();
  const ref = { namespace: NAMESPACE, name: NAME };
  await client.create(RUNNER_SETS, { metadata: ref, spec: GOOD });
  const patch = async (spec: object) => await client.mergePatch(RUNNER_SETS, ref, { spec });
  for (const change of [
    { url: 'https://github.com/other' },
    { name: 'x' },
    { labels: ['x'] },
    { runnerGroup: 'x' },
  ]) {
    await expect(patch({ github: change })).rejects.toThrow(`${Object.keys(change)[0]} is immutable`);
  }
  await expect(patch({ min: 1, max: 2, github: { credentialSecret: 'new' } })).resolves.toMatchObject({
    spec: { min: 1, max: 2 },
  });
});
