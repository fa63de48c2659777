import { describe, expect, it } from 'vitest';
import { OpenLimit } from './limit.ts';

const POD_LIMIT = 16;
const NAMESPACE_LIMIT = 32;
const HOST_LIMIT = 64;

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
    const pods = Array.from({ length: NAMESPACE_LIMIT }, (_, number) => `busy/vm-${number}`);
    const { all, end } = startAll(readers, pods);
    await expect(readers.count('busy', 'one-more', async () => undefined)).rejects.toMatchObject({
      status: 429,
      message: 'On this host, namespace busy has 32 open logs, the maximum; try again later',
    });
    await readers.count('default', 'other', async () => undefined);
    end();
    await Promise.all(all);
    await readers.count('busy', 'one-more', async () => undefined);
  });

  it('of a host are bounded', async () => {
    const readers = new OpenLimit('logs');
    const pods = Array.from({ length: HOST_LIMIT }, (_, number) => `team-${number % 4}/vm-${number}`);
    const { all, end } = startAll(readers, pods);
    await expect(readers.count('default', 'one-more', async () => undefined)).rejects.toMatchObject({
      status: 429,
      message: 'This host has 64 open logs, the maximum; try again later',
    });
    end();
    await Promise.all(all);
    await readers.count('default', 'one-more', async () => undefined);
  });
});
