/** Tests the guard with a model of a disk. Guests write, pause and continue as the guard requests, and people free disk space. */
import * as fc from 'fast-check';
import { pino } from 'pino';
import { describe, expect, test } from 'vitest';
import { DiskGuard, type DiskWish } from './diskguard.ts';

const GIB = 2 ** 30;
const MINIMUM = 2 * GIB;
/** Time between two checks. */
const LOOK_MILLISECONDS = 500;
/** Number of checks until all machines continue. Each of the few machines gets some seconds before the next machine continues. */
const LOOKS_UNTIL_ALL_GO_ON = 100;

interface Guest {
  bytes: number;
  /** Bytes that the guest writes between two checks while it runs. */
  rate: number;
  paused: boolean;
}

class Model {
  readonly size: number;
  readonly guests: Map<string, Guest>;
  /** Bytes on the disk that belong to no guest. */
  others = 0;
  /** Bytes of images without a holder. */
  evictable = 0;
  /** Requests in the order in which the guard made them. */
  readonly asked: [string, DiskWish | undefined][] = [];
  readonly guard: DiskGuard;
  replenished = 0;
  #now = 0;

  constructor(size: number, rates: Record<string, number>, minimumFree = MINIMUM) {
    this.size = size;
    this.guests = new Map(
      Object.entries(rates).map(([uid, rate]) => [uid, { bytes: 0, rate, paused: false }]),
    );
    this.guard = new DiskGuard({
      minimumFree,
      freeBytes: async () => this.free,
      sizeOf: async (uid) => this.guests.get(uid)?.bytes ?? 0,
      machines: () => [...this.guests].map(([uid, { paused }]) => ({ uid, paused })),
      relieve: async () => {
        this.evictable -= Math.min(this.evictable, Math.max(0, minimumFree - this.free));
      },
      replenish: () => {
        this.replenished += 1;
      },
      changed: (uid) => this.asked.push([uid, this.guard.wish(uid)]),
      logger: pino({ level: 'silent' }),
    });
  }

  get free(): number {
    const used = [...this.guests.values()].reduce((sum, { bytes }) => sum + bytes, 0);
    return Math.max(0, this.size - used - this.others - this.evictable);
  }

  /** Simulates `count` checks: guests write, the guard checks, and machines follow its requests. */
  async look(count = 1): Promise<void> {
    for (let index = 0; index < count; index += 1) {
      for (const guest of this.guests.values()) {
        if (!guest.paused) {
          guest.bytes += Math.min(guest.rate, this.free);
        }
      }
      this.#now += LOOK_MILLISECONDS;
      await this.guard.look(this.#now);
      for (const [uid, guest] of this.guests) {
        const wish = this.guard.wish(uid);
        if (wish !== undefined) {
          guest.paused = wish === 'pause';
        }
      }
    }
  }

  get paused(): string[] {
    return [...this.guests].filter(([, { paused }]) => paused).map(([uid]) => uid);
  }

  write(uid: string, rate: number): void {
    const guest = this.guests.get(uid);
    if (guest !== undefined) {
      guest.rate = rate;
    }
  }
}

describe('a guest that fills the disk', () => {
  test('is paused before the disk is full, and its neighbour writes on', async () => {
    const model = new Model(20 * GIB, { neighbour: 2 ** 20, greedy: GIB / 4 });
    await model.look(100);
    expect(model.paused).toEqual(['greedy']);
    expect(model.free).toBeGreaterThan(GIB);
    const before = model.guests.get('neighbour')?.bytes ?? 0;
    await model.look(20);
    expect(model.guests.get('neighbour')?.bytes).toBe(before + 20 * 2 ** 20);
  });

  test("leaves the agent's own reserve to be filled only while enough is free", async () => {
    const model = new Model(20 * GIB, { greedy: 0 });
    await model.look();
    expect(model.replenished).toBe(1);
    model.others = 20 * GIB;
    await model.look(5);
    expect(model.replenished).toBe(1);
  });

  test('goes on when there is room, and not before a quarter more is free than must stay so', async () => {
    const model = new Model(20 * GIB, { greedy: GIB / 4 });
    await model.look(100);
    expect(model.paused).toEqual(['greedy']);
    model.write('greedy', 0);
    model.others = -(MINIMUM - model.free) - 0.2 * MINIMUM;
    await model.look(50);
    expect(model.paused).toEqual(['greedy']);
    model.others -= 0.1 * MINIMUM;
    await model.look();
    expect(model.paused).toEqual([]);
  });

  test('is left alone where images that nobody holds make room', async () => {
    const model = new Model(20 * GIB, { greedy: GIB / 4 });
    model.evictable = 10 * GIB;
    await model.look(60);
    expect(model.paused).toEqual([]);
    expect(model.evictable).toBeLessThan(10 * GIB);
  });
});

test('several that fill the disk are paused one after another, before it is full', async () => {
  const model = new Model(20 * GIB, { a: GIB / 8, b: GIB / 8, c: GIB / 8, still: 0 });
  for (let looks = 0; looks < 200; looks += 1) {
    const before = model.paused.length;
    await model.look();
    expect(model.paused.length).toBeLessThanOrEqual(before + 1);
  }
  expect(model.paused.toSorted()).toEqual(['a', 'b', 'c']);
  expect(model.free).toBeGreaterThan(0);
});

test('a machine that was stopped and started between two looks is not paused for what it did before', async () => {
  const model = new Model(20 * GIB, { greedy: GIB / 4 });
  while (model.paused.length === 0) {
    await model.look();
  }
  model.write('greedy', 0);
  for (const guest of model.guests.values()) {
    guest.paused = false;
  }
  model.guard.startsAnew('greedy');
  await model.look(10);
  expect(model.paused).toEqual([]);
});

test('nobody is paused for what others than guests write', async () => {
  const model = new Model(20 * GIB, { a: 0, b: 0 });
  model.others = 19 * GIB;
  await model.look(50);
  expect(model.asked).toEqual([]);
});

test('each of several that were paused has its turn, also when the first fills the disk again', async () => {
  const model = new Model(20 * GIB, { a: GIB / 4, b: GIB / 4 });
  await model.look(100);
  model.asked.length = 0;
  for (let round = 0; round < 4; round += 1) {
    model.others -= 2 * GIB;
    await model.look(40);
  }
  const goOn = model.asked.filter(([, wish]) => wish === 'unpause').map(([uid]) => uid);
  expect(new Set(goOn)).toEqual(new Set(['a', 'b']));
});

test('a guest that QEMU stopped goes on where nothing is to stay free, too, but not on a full disk', async () => {
  const model = new Model(GIB, { a: 0 }, 0);
  model.others = GIB;
  const guest = model.guests.get('a');
  if (guest !== undefined) {
    guest.paused = true;
  }
  await model.look(20);
  expect(model.paused).toEqual(['a']);
  model.others = 0;
  await model.look();
  expect(model.paused).toEqual([]);
});

test('what may be taken is what is free beside what is to stay so, and nothing before the first look', async () => {
  const model = new Model(20 * GIB, {});
  expect(model.guard.roomBytes).toBe(0);
  await model.look();
  expect(model.guard.roomBytes).toBe(18 * GIB);
});

type Happening =
  | { kind: 'write'; uid: string; rate: number }
  | { kind: 'others'; bytes: number }
  | { kind: 'end'; uid: string }
  | { kind: 'look'; count: number };

const uid = fc.constantFrom('a', 'b', 'c', 'd');
const happening: fc.Arbitrary<Happening> = fc.oneof(
  fc.record({ kind: fc.constant('write' as const), uid, rate: fc.integer({ min: 0, max: GIB / 16 }) }),
  fc.record({ kind: fc.constant('others' as const), bytes: fc.integer({ min: 0, max: 18 * GIB }) }),
  fc.record({ kind: fc.constant('end' as const), uid }),
  fc.record({ kind: fc.constant('look' as const), count: fc.integer({ min: 1, max: 40 }) }),
);

test('an agent that comes back to a full disk and a paused machine pauses no neighbour for the little that it writes', async () => {
  const model = new Model(20 * GIB, { greedy: GIB / 4, neighbour: 2 ** 20 });
  model.others = 18.1 * GIB;
  const greedy = model.guests.get('greedy');
  if (greedy !== undefined) {
    greedy.paused = true;
  }
  await model.look(50);
  expect(model.paused).toEqual(['greedy']);
});

describe('over any history', () => {
  test('at most one machine is paused at a look, none that did not grow, and all go on once there is room', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(happening, { maxLength: 40, size: 'max' }), async (history) => {
        const model = new Model(20 * GIB, { a: 0, b: 0, c: 0, d: 0 });
        const grew = new Set<string>();
        for (const event of history) {
          if (event.kind === 'write') {
            model.write(event.uid, event.rate);
            if (event.rate > 0) {
              grew.add(event.uid);
            }
          }
          if (event.kind === 'others') {
            model.others = event.bytes;
          }
          if (event.kind === 'end') {
            model.guests.delete(event.uid);
          }
          for (let index = 0; event.kind === 'look' && index < event.count; index += 1) {
            const before = model.paused.length;
            await model.look();
            expect(model.paused.length).toBeLessThanOrEqual(before + 1);
            expect(model.paused.filter((paused) => !grew.has(paused))).toEqual([]);
          }
        }
        for (const one of model.guests.keys()) {
          model.write(one, 0);
        }
        model.others = -100 * GIB;
        await model.look(LOOKS_UNTIL_ALL_GO_ON);
        expect(model.paused).toEqual([]);
      }),
      { numRuns: 300 },
    );
  });
});
