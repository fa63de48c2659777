import { expect, it } from 'vitest';
import type { Namespace } from '../../kube/core.ts';
import type { CallerClient } from '../callers/caller.ts';
import { VisibleNamespaces } from './visible.ts';

/** More namespaces than questions may wait. */
const MANY = 8_300;

it('refuses a list while the questions of other callers fill the queue', async () => {
  const namespaces: Namespace[] = Array.from({ length: MANY }, (_one, index) => ({
    apiVersion: 'v1',
    kind: 'Namespace',
    metadata: { name: `platform-${index}` },
  }));
  const visible = new VisibleNamespaces(
    { namespaces: () => namespaces, namespace: () => undefined },
    () => true,
  );
  const answered = Promise.withResolvers<{ status: { allowed: boolean } }>();
  const client = {
    raw: () => Promise.resolve({ status: 403, body: {} }),
    create: () => answered.promise,
    username: () => Promise.resolve('ann'),
    ended: new AbortController().signal,
  } as unknown as CallerClient;
  const first = visible.list(client);
  await expect(visible.list(client)).rejects.toMatchObject({ status: 429 });
  answered.resolve({ status: { allowed: true } });
  expect(await first).toHaveLength(MANY);
});
