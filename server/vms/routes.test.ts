import { expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Caller } from '../callers/caller.ts';
import { deleteAndWait } from './routes.ts';
import { WaitEnd } from '../http/waiting.ts';

/** A caller whose watches send no events. */
const caller = {
  client: {
    delete: async () => undefined,
  },
  watches: {
    stream: async (_path: string, signal: AbortSignal) => {
      signal.throwIfAborted();
      return [];
    },
  },
} as unknown as Caller;

const MAC: VM = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'VM',
  metadata: { name: 'mac', namespace: 'platform-default', resourceVersion: '1' },
  spec: {},
};

it.each([
  ['stopping', 503],
  ['late', 504],
] as const)('a deletion that waits no longer because of %s answers %i', async (why, code) => {
  const end = new AbortController();
  const answer = deleteAndWait(caller, MAC, end);
  end.abort(new WaitEnd(why));
  await expect(answer).rejects.toMatchObject({ status: code });
});
