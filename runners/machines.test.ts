import { expect, it } from 'vitest';
import type { RunnerSet, RunnerSetSpec } from '../api/v1alpha1/runnerset.ts';
import type { KubeClient } from '../kube/client.ts';
import type { GitHub } from './github/client.ts';
import { makeRunner } from './machines.ts';

const NOW = Date.parse('2030-01-01T00:00:00Z');

/** Returns the VM and the Secret that are made for a set. */
async function make(spec: Pick<RunnerSetSpec, 'configRef' | 'template'>): Promise<object[]> {
  const made: object[] = [];
  const client = {
    create: async (_: unknown, object: object) => {
      made.push(object);
      return await Promise.resolve(object);
    },
  } as unknown as KubeClient;
  const github = { registerRunner: async () => await Promise.resolve('jit') } as unknown as GitHub;
  const set: RunnerSet = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'RunnerSet',
    metadata: { namespace: 'ci', name: 'mac', uid: '0123-4567' },
    spec: { github: { url: 'https://github.com/acme', credentialSecret: 'github' }, max: 2, ...spec },
  };
  const signal = new AbortController().signal;
  await makeRunner({ client, github, setID: 1, signal, clock: () => NOW }, set);
  return made;
}

const ADDED = {
  userDataSecretRef: { name: expect.stringMatching(/^mac-/) as string, key: 'jitconfig' },
  ttlSecondsAfterFinished: 0,
  aliveUntil: '2030-01-01T12:00:00Z',
  activeDeadlineSeconds: 576_000,
};

it('a VM of a set with a VMConfig names it', async () => {
  const [vm] = await make({ configRef: { name: 'runner' } });
  expect(vm).toMatchObject({ metadata: { labels: { 'berth.dev/scale-set': 'mac' } } });
  expect(vm).toHaveProperty('spec', { configRef: { name: 'runner' }, ...ADDED });
});

it('a VM has the labels, annotations and the whole spec of its template, and what the set adds', async () => {
  const spec = { image: 'mac', cpu: 4, placement: { tag: 'fast' }, guestMetadata: { team: 'mobile' } };
  const metadata = { labels: { team: 'mobile' }, annotations: { 'example.com/note': 'x' } };
  const [vm, secret] = await make({ template: { metadata, spec } });
  expect(vm).toMatchObject({
    metadata: {
      labels: { team: 'mobile', 'berth.dev/scale-set': 'mac' },
      annotations: { 'example.com/note': 'x' },
    },
  });
  expect(vm).toHaveProperty('spec', { ...spec, ...ADDED });
  expect(secret).toMatchObject({ stringData: { jitconfig: 'jit' } });
});
