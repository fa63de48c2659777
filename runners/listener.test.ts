import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { GitHub, QueueMessage } from './github/client.ts';
import { Listener } from './listener.ts';

const MESSAGE: QueueMessage = { id: 1, statistics: undefined, items: [] };

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

/** Returns a listener to a server that answers each poll at once, and the times of the polls. */
function listen(answer: QueueMessage | undefined): { listener: Listener; polls: number[] } {
  const polls: number[] = [];
  const done = vi.fn(async () => await Promise.resolve());
  const github = {
    findGroup: async () => await Promise.resolve(1),
    findScaleSet: async () => await Promise.resolve({ id: 1, name: 'mac' }),
    openSession: async () => await Promise.resolve({}),
    nextMessage: async () => {
      polls.push(performance.now());
      return await Promise.resolve(answer);
    },
    useScaleSet: done,
    acknowledge: done,
    endSession: done,
  } as unknown as GitHub;
  const listener = new Listener({
    names: { group: 'default', name: 'mac', labels: [] },
    owner: 'here',
    connect: async () => await Promise.resolve({ github, close: done }),
    capacity: () => 1,
    onConnected: vi.fn(),
    onFailed: vi.fn(),
    onNews: vi.fn(),
    logger: pino({ level: 'silent' }),
  });
  return { listener, polls };
}

it.each([
  ['without a message', undefined, 1_000],
  ['with a message', MESSAGE, 250],
])(
  'answers %s that come at once do not make the polls follow each other at once',
  async (_, answer, wait) => {
    const { listener, polls } = listen(answer);
    await vi.advanceTimersByTimeAsync(3.5 * wait);
    const [first = 0] = polls;
    expect(polls.map((time) => time - first)).toEqual([0, wait, 2 * wait, 3 * wait]);
    await listener.stop({ deletesSet: false });
    expect(polls).toHaveLength(4);
  },
);
