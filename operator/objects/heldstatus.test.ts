import { describe, expect, it, vi } from 'vitest';
import { HeldStatus } from './heldstatus.ts';

function held() {
  const time = { now: 1_000 };
  const status = new HeldStatus({ holdMilliseconds: 500, clock: () => time.now });
  const save = vi.fn(() => Promise.resolve());
  const write = (after: object, mayWait = true) =>
    status.write('key', { before: { phase: 'Pending' }, after, mayWait: () => mayWait }, save);
  return { time, status, save, write };
}

describe('a status that may wait', () => {
  it('is held back from the first change on, and written in its last form when the time is over', async () => {
    const { time, save, write } = held();
    expect(await write({ phase: 'Scheduled' })).toBe(500);
    time.now += 400;
    expect(await write({ phase: 'Pulling' })).toBe(100);
    expect(save).not.toHaveBeenCalled();
    time.now += 100;
    expect(await write({ phase: 'Cloning' })).toBeUndefined();
    expect(save.mock.calls).toEqual([[{ phase: 'Cloning' }]]);
    expect(await write({ phase: 'Starting' }), 'the next one has a time of its own').toBe(500);
  });

  it('is not held longer when the clock is set back', async () => {
    const { time, write } = held();
    await write({ phase: 'Scheduled' });
    time.now -= 900;
    expect(await write({ phase: 'Pulling' })).toBe(500);
    time.now += 500;
    expect(await write({ phase: 'Pulling' })).toBeUndefined();
  });

  it('is written at once with a change that may not wait', async () => {
    const { save, write } = held();
    await write({ phase: 'Scheduled' });
    expect(await write({ phase: 'Running' }, false)).toBeUndefined();
    expect(save.mock.calls).toEqual([[{ phase: 'Running' }]]);
  });

  it('is dropped when nothing differs any more', async () => {
    const { time, save, write } = held();
    await write({ phase: 'Scheduled' });
    time.now += 500;
    expect(await write({ phase: 'Pending' })).toBeUndefined();
    expect(save).not.toHaveBeenCalled();
    expect(await write({ phase: 'Scheduled' })).toBe(500);
  });
});
