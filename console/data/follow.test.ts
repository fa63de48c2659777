import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Collection } from '../model/collection.ts';
import type { Api } from './api.ts';
import { RefusedRequestError } from './refusal.ts';
import { followObjects } from './follow.ts';

const TOO_LARGE = new RefusedRequestError(422, 'The list is too large');

beforeEach(() => {
  vi.stubGlobal('document', Object.assign(new EventTarget(), { hidden: false }));
});

afterEach(() => {
  vi.unstubAllGlobals();
});

/** Follows objects until the watch has begun. The lists give the answers in this order. Returns what happened. */
async function follow(...answers: (object | Error)[]) {
  const end = new AbortController();
  const [paths, states] = [[] as string[], [] as string[]];
  const collection = new Collection();
  const api = {
    async get(path: string): Promise<object> {
      paths.push(path);
      const answer = answers.shift() ?? TOO_LARGE;
      if (answer instanceof Error) {
        throw answer;
      }
      return answer;
    },
    async *watch(path: string, resourceVersion: string, { onOpen }: { onOpen: () => void }) {
      paths.push(`${path} from ${resourceVersion}`);
      states.push('begins');
      onOpen();
      end.abort();
      yield* [];
    },
  };
  const onChange = ({ state }: { state: string }) => {
    states.push(state);
    if (state === 'stale') {
      end.abort();
    }
  };
  const { signal } = end;
  await followObjects({ api: api as unknown as Api, path: 'vms', collection, onChange, signal });
  return { paths, states, names: collection.all.map(({ metadata }) => metadata.name) };
}

function page(name: string, rest: { continue?: string } = {}) {
  return { items: [{ metadata: { name } }], resourceVersion: '7', ...rest };
}

it('is live when the watch is open, and not before', async () => {
  expect(await follow(page('one'))).toEqual({
    paths: ['/console/objects/vms?limit=500', 'vms from 7'],
    states: ['loading', 'begins', 'live'],
    names: ['one'],
  });
});

it('reads the same page again with fewer objects when they are too large for one answer', async () => {
  const { paths, names } = await follow(page('one', { continue: 'a=' }), TOO_LARGE, TOO_LARGE, page('two'));
  expect(paths).toEqual([
    '/console/objects/vms?limit=500',
    ...[500, 250, 125].map((limit) => `/console/objects/vms?limit=${limit}&continue=a%3D`),
    'vms from 7',
  ]);
  expect(names).toEqual(['one', 'two']);
});

it('gives up a list of which not even one object fits in an answer', async () => {
  const { paths, states } = await follow();
  expect(paths.map((path) => path.split('=').at(-1))).toEqual(
    [500, 250, 125, 62, 31, 15, 7, 3, 1].map(String),
  );
  expect(states).toEqual(['loading', 'stale']);
});
