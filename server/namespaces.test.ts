import { expect, it } from 'vitest';
import type { Namespace } from '../kube/core.ts';
import type { CallerClient } from './callers/caller.ts';
import { VisibleNamespaces } from './namespaces.ts';

/** A number of namespaces that is larger than the limit of waiting requests. */
const MANY = 8_300;
/** A number of namespaces that is larger than the limit of waiting requests for another list of the same user. */
const SOME = 2_000;

function visibleOf(count: number): VisibleNamespaces {
  const namespaces: Namespace[] = Array.from({ length: count }, (_one, index) => ({
    apiVersion: 'v1',
    kind: 'Namespace',
    metadata: { name: `platform-${index}` },
  }));
  return new VisibleNamespaces({ namespaces: () => namespaces, namespace: () => undefined }, () => true);
}

interface Review {
  readonly spec: { readonly resourceAttributes: { readonly namespace: string } };
}

interface FakeUser {
  readonly client: CallerClient;
  readonly end: AbortController;
  /** Names of the namespaces about which the API server was asked. */
  readonly asked: string[];
  /** Lets the API server answer all requests, including later ones. */
  readonly answer: () => void;
}

function userOf(name: string): FakeUser {
  const answered = Promise.withResolvers<{ status: { allowed: boolean } }>();
  const end = new AbortController();
  const asked: string[] = [];
  const client = {
    raw: () => Promise.resolve({ status: 403, body: {} }),
    create: (_type: unknown, { spec }: Review) => {
      asked.push(spec.resourceAttributes.namespace);
      return answered.promise;
    },
    username: () => Promise.resolve(name),
    ended: end.signal,
  } as unknown as CallerClient;
  return { client, end, asked, answer: () => answered.resolve({ status: { allowed: true } }) };
}

it('refuses a list while the questions of other callers fill the queue', async () => {
  const visible = visibleOf(MANY);
  const [ann, bob] = [userOf('ann'), userOf('bob')];
  const first = visible.list(ann.client);
  await expect(visible.list(bob.client)).rejects.toMatchObject({ status: 429 });
  ann.answer();
  expect(await first).toHaveLength(MANY);
});

it('refuses another list of a user whose questions wait, lets others ask, and asks nothing for a client that is gone', async () => {
  const visible = visibleOf(SOME);
  const [ann, bob] = [userOf('ann'), userOf('bob')];
  const first = visible.list(ann.client);
  await expect(visible.list(ann.client)).rejects.toMatchObject({ status: 429 });
  const other = visible.list(bob.client);
  const gone = first.catch((error: unknown) => error);
  ann.end.abort(new Error('gone'));
  expect(await gone).toEqual(new Error('gone'));
  const before = ann.asked.length;
  // Requests that were already sent to the API server end normally.
  ann.answer();
  bob.answer();
  expect(await other).toHaveLength(SOME);
  expect([ann.asked.length, bob.asked.length]).toEqual([before, SOME]);
  expect(await visible.list(bob.client)).toHaveLength(SOME);
});
