import { describe, expect, it } from 'vitest';
import { CommandMemory, OpenLimit } from './limit.ts';

const POD_LIMIT = 16;
const NAMESPACE_LIMIT = 32;

function podsOf(namespace: string, count: number): string[] {
  return Array.from({ length: count }, (_, number) => `${namespace}/vm-${number}`);
}

describe('open logs', () => {
  /** Starts readers that continue until the test ends them. */
  function startAll(readers: OpenLimit, pods: readonly string[]): { all: Promise<void>[]; end: () => void } {
    const { promise, resolve } = Promise.withResolvers<void>();
    const all = pods.map(async (pod) => {
      const [namespace = '', name = ''] = pod.split('/');
      await readers.count(namespace, name, () => promise);
    });
    return { all, end: resolve };
  }

  it('of one Pod are bounded, and leave room for those of others', async () => {
    const readers = new OpenLimit('logs');
    const { all, end } = startAll(readers, Array<string>(POD_LIMIT).fill('default/busy'));
    await expect(readers.count('default', 'busy', async () => undefined)).rejects.toMatchObject({
      status: 429,
      message: 'Pod default/busy has 16 open logs, the maximum; try again later',
    });
    await readers.count('default', 'other', async () => undefined);
    end();
    await Promise.all(all);
    await readers.count('default', 'busy', async () => undefined);
  });

  it('of one namespace are bounded, and leave room for those of others', async () => {
    const readers = new OpenLimit('logs');
    const { all, end } = startAll(readers, podsOf('busy', NAMESPACE_LIMIT));
    await expect(readers.count('busy', 'one-more', async () => undefined)).rejects.toMatchObject({
      status: 429,
      message: 'On this host, namespace busy has 32 open logs, the maximum; try again later',
    });
    await readers.count('default', 'other', async () => undefined);
    end();
    await Promise.all(all);
    await readers.count('busy', 'one-more', async () => undefined);
  });

  it('of several namespaces together leave room for those of others', async () => {
    const readers = new OpenLimit('logs');
    const { all, end } = startAll(readers, [...podsOf('one', NAMESPACE_LIMIT), ...podsOf('two', 16)]);
    await expect(readers.count('two', 'one-more', async () => undefined)).rejects.toMatchObject({
      status: 429,
      message:
        'On this host, namespace two has 16 open logs, the maximum while other namespaces have 32 open logs; try again later',
    });
    await expect(readers.count('one', 'one-more', async () => undefined)).rejects.toMatchObject({
      message:
        'On this host, namespace one has 32 open logs, the maximum while other namespaces have 16 open logs; try again later',
    });
    await readers.count('default', 'other', async () => undefined);
    end();
    await Promise.all(all);
  });

  it('of a host are bounded', async () => {
    const readers = new OpenLimit('logs');
    // Each namespace gets half of the part that the other namespaces leave. Each of the last namespaces gets one.
    const taken = [32, 16, 8, 4, 2, 1, 1];
    const { all, end } = startAll(
      readers,
      taken.flatMap((count, number) => podsOf(`team-${number}`, count)),
    );
    await expect(readers.count('default', 'one-more', async () => undefined)).rejects.toMatchObject({
      status: 429,
      message: 'This host has 64 open logs, the maximum; try again later',
    });
    end();
    await Promise.all(all);
    await readers.count('default', 'one-more', async () => undefined);
  });
});

const MEBIBYTE = 1024 * 1024;

describe('the memory of commands', () => {
  it('is shared between namespaces, and is free again when a command has ended', async () => {
    const memory = new CommandMemory();
    const end = Promise.withResolvers<void>();
    const take = (namespace: string, mebibytes: number): boolean[] => {
      const taken: boolean[] = [];
      void memory.use(namespace, async (reserve) => {
        for (let count = 0; count < mebibytes; count += 1) {
          taken.push(reserve(MEBIBYTE));
        }
        await end.promise;
      });
      return taken;
    };
    expect(take('busy', 40).filter(Boolean)).toHaveLength(32);
    expect(take('busy', 1)).toEqual([false]);
    expect(take('other', 40).filter(Boolean)).toHaveLength(16);
    expect(take('third', 40).filter(Boolean)).toHaveLength(8);
    end.resolve();
    await end.promise;
    await expect.poll(() => take('busy', 1)).toEqual([true]);
  });

  it('is free again when a command has failed', async () => {
    const memory = new CommandMemory();
    for (let round = 0; round < 3; round += 1) {
      const failed = memory.use('busy', async (reserve) => {
        expect(reserve(32 * MEBIBYTE)).toBe(true);
        throw new Error('failed');
      });
      await expect(failed).rejects.toThrow('failed');
    }
  });
});
