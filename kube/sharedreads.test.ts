import { expect, it } from 'vitest';
import { CONFIG_MAPS, SECRETS } from './core.ts';
import { ApiError } from './errors.ts';
import type { KubeObject, Ref, Resource } from './objects.ts';
import { SharedReads } from './client.ts';

const REF = { namespace: 'ci', name: 'registries' };

/** Returns shared reads, and the requests that they sent. A request waits until the test answers it. */
function createReads() {
  const requests: { plural: string; name: string; answer: PromiseWithResolvers<KubeObject> }[] = [];
  const get = async <T extends KubeObject>({ plural }: Resource<T>, { name }: Ref): Promise<T> => {
    const answer = Promise.withResolvers<KubeObject>();
    requests.push({ plural, name, answer });
    return (await answer.promise) as T;
  };
  return { reads: new SharedReads({ get }), requests };
}

function version(resourceVersion: string): KubeObject {
  return { apiVersion: 'v1', kind: 'ConfigMap', metadata: { ...REF, resourceVersion } };
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

it('callers that come during a request share the next one, which begins after the first has ended', async () => {
  const { reads, requests } = createReads();
  const first = reads.get(CONFIG_MAPS, REF);
  const later = [reads.get(CONFIG_MAPS, REF), reads.get(CONFIG_MAPS, REF)];
  await settled();
  expect(requests).toHaveLength(1);
  requests[0]?.answer.resolve(version('1'));
  expect(await first).toEqual(version('1'));
  await settled();
  const latest = reads.get(CONFIG_MAPS, REF);
  requests[1]?.answer.resolve(version('2'));
  expect(await Promise.all(later)).toEqual([version('2'), version('2')]);
  await settled();
  requests[2]?.answer.resolve(version('3'));
  expect(await latest).toEqual(version('3'));
  expect(requests).toHaveLength(3);
});

it('a failure reaches only the callers of its request, and a missing object is undefined', async () => {
  const { reads, requests } = createReads();
  const first = reads.get(CONFIG_MAPS, REF);
  const second = reads.get(CONFIG_MAPS, REF);
  requests[0]?.answer.reject(new Error('refused'));
  await expect(first).rejects.toThrow('refused');
  await settled();
  requests[1]?.answer.reject(new ApiError('none', { status: 404, reason: 'NotFound' }));
  expect(await second).toBeUndefined();
  await settled();
  void reads.get(CONFIG_MAPS, REF);
  expect(requests).toHaveLength(3);
});

it('reads of other objects do not wait', () => {
  const { reads, requests } = createReads();
  void reads.get(CONFIG_MAPS, REF);
  void reads.get(CONFIG_MAPS, { ...REF, name: 'other' });
  void reads.get(SECRETS, REF);
  expect(requests.map(({ plural, name }) => `${plural}/${name}`)).toEqual([
    'configmaps/registries',
    'configmaps/other',
    'secrets/registries',
  ]);
});
