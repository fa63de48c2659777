import { describe, expect, it } from 'vitest';
import { LogReaders } from './logs.ts';

const POD_READERS = 16;
const HOST_READERS = 64;

describe('readers of logs', () => {
  /** Starts readers that continue until the test ends them. */
  function startReaders(
    readers: LogReaders,
    pods: readonly string[],
  ): { all: Promise<void>[]; end: () => void } {
    const { promise, resolve } = Promise.withResolvers<void>();
    return { all: pods.map(async (pod) => await readers.count(pod, () => promise)), end: resolve };
  }

  it('of one Pod are bounded, and leave room for those of others', async () => {
    const readers = new LogReaders();
    const { all, end } = startReaders(readers, Array<string>(POD_READERS).fill('default/busy'));
    await expect(readers.count('default/busy', async () => undefined)).rejects.toMatchObject({
      status: 429,
      message: 'Pod default/busy has 16 open logs, the maximum; try again later',
    });
    await readers.count('default/other', async () => undefined);
    end();
    await Promise.all(all);
    await readers.count('default/busy', async () => undefined);
  });

  it('of a host are bounded', async () => {
    const readers = new LogReaders();
    const pods = Array.from({ length: HOST_READERS }, (_, number) => `default/vm-${number}`);
    const { all, end } = startReaders(readers, pods);
    await expect(readers.count('default/one-more', async () => undefined)).rejects.toMatchObject({
      status: 429,
      message: 'This host has 64 open logs, the maximum; try again later',
    });
    end();
    await Promise.all(all);
    await readers.count('default/one-more', async () => undefined);
  });
});
