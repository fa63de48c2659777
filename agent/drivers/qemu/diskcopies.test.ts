import { setImmediate } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { DiskCopies } from './diskcopies.ts';
import type { MachineContext } from './launch.ts';
import type { QemuMachine } from './machine.ts';
import type { HostPlatforms } from './platform.ts';

test('a step that waits for a copy can be cancelled at once, and a step that has begun cannot', async () => {
  const copies = new DiskCopies({ uid: 'uid', path: '/' }, {} as QemuMachine, {
    context: {} as MachineContext,
    platforms: {} as HostPlatforms,
  });
  const order: string[] = [];
  const copied = Promise.withResolvers<void>();
  const begun = new AbortController();
  const first = copies.exclusively(async () => {
    await copied.promise;
    order.push('first');
  }, begun.signal);
  const waiting = new AbortController();
  const cancelled = copies.exclusively(async () => void order.push('cancelled'), waiting.signal);
  await setImmediate();
  begun.abort(new Error('too late'));
  waiting.abort(new Error('not wanted'));
  await expect(cancelled).rejects.toThrow('not wanted');
  expect(order).toEqual([]);
  copied.resolve();
  await first;
  await copies.exclusively(async () => void order.push('last'));
  expect(order).toEqual(['first', 'last']);
});
