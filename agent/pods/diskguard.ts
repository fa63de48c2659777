/**
 * Keeps room on the disk that machines share. QEMU itself stops a guest only when nothing at all is free, and then every
 * guest that writes. So this looks earlier, and pauses the machine whose disk has grown most: one at a look, while the
 * others go on writing into the room that is kept free.
 */
import type { Logger } from 'pino';
import { rest } from '../../base/time.ts';

/** A disk that takes 2 GiB/s uses up half of the default `images.minimumFree` between two looks. */
const LOOK_MILLISECONDS = 500;
/** Sizes are looked at while less than this many times `minimumFree` is free: before, nobody is to be paused. */
const NEAR_FACTOR = 2;
/** After each pause so much of `minimumFree` may still be taken until the next one: neighbours write a little, too. */
const STEPS = 16;
/** Machines go on when a quarter more is free than is to stay so: a difference, or they would be paused again at once. */
const ROOM_FACTOR = 1.25;
/** Where `minimumFree` is less: a guest that QEMU stopped would be stopped again. */
const LEAST_ROOM_BYTES = 64 * 1024 * 1024;
/** Machines go on one after another, so that the next look sees how much the first one writes. */
const UNPAUSE_MILLISECONDS = 5_000;

/** Tells people why a machine is paused. */
export const PAUSED_MESSAGE =
  "the machine is paused: its disk grew while less of the host's is free than is to stay so (images.minimumFree); it goes on when there is room";

export type DiskWish = 'pause' | 'unpause';

export interface GuardedMachine {
  uid: string;
  paused: boolean;
}

export interface DiskGuardOptions {
  /** Bytes that are to stay free: `images.minimumFree`. */
  minimumFree: number;
  freeBytes: () => Promise<number>;
  /** Bytes that all of a machine's files take. */
  sizeOf: (uid: string) => Promise<number>;
  /** Those whose guests may write or are paused. */
  machines: () => readonly GuardedMachine[];
  /** Removes images that nobody holds while less is free than is to stay so. */
  relieve: () => Promise<void>;
  /** Fills up the room that is kept for the agent's own small files. */
  replenish: () => void;
  /** The machine's wish has changed. */
  changed: (uid: string) => void;
  logger: Logger;
}

/** A guest fills a disk within seconds; older growth says nothing about the present. */
const WINDOW_MILLISECONDS = 10_000;

interface Sample {
  /** Milliseconds. */
  readonly at: number;
  /** Bytes by uid. */
  readonly sizes: ReadonlyMap<string, number>;
}

/** Measures by how much the disks of machines grew lately. */
class Growth {
  /** The oldest first; some twenty, with two looks a second. */
  #samples: Sample[] = [];

  note(sizes: ReadonlyMap<string, number>, at: number): void {
    this.#samples = [
      ...this.#samples.filter((sample) => at - sample.at <= WINDOW_MILLISECONDS),
      { at, sizes },
    ];
  }

  clear(): void {
    this.#samples = [];
  }

  /** Bytes since the first look of the window that saw the machine; never less than 0. */
  of(uid: string): number {
    const first = this.#samples.find(({ sizes }) => sizes.has(uid))?.sizes.get(uid);
    const last = this.#samples.at(-1)?.sizes.get(uid);
    return first === undefined || last === undefined ? 0 : Math.max(0, last - first);
  }
}

export class DiskGuard {
  readonly #options: DiskGuardOptions;
  readonly #wishes = new Map<string, DiskWish>();
  readonly #growth = new Growth();
  /** When each machine was first seen paused, as of `performance.now()`. */
  #pausedSince: ReadonlyMap<string, number> = new Map();
  #roomBytes = 0;
  /** The next machine is paused when less is free. */
  #pauseBelow: number;
  #nextUnpause = 0;
  #isFailing = false;

  constructor(options: DiskGuardOptions) {
    this.#options = options;
    this.#pauseBelow = options.minimumFree;
  }

  /** The request of the disk to a machine, until it is done. */
  wish(uid: string): DiskWish | undefined {
    return this.#wishes.get(uid);
  }

  /** The machine starts anew, maybe before a look has seen that it had stopped. It loses its request. */
  startsAnew(uid: string): void {
    this.#wishes.delete(uid);
  }

  /** Bytes that may still be taken before less is free than is to stay so, at the last look; 0 before the first. */
  get roomBytes(): number {
    return this.#roomBytes;
  }

  /** Looks until the signal aborts. The first of looks that fail in a row is logged; the next one comes all the same. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        await this.look(performance.now());
        this.#isFailing = false;
      } catch (error) {
        if (!this.#isFailing) {
          this.#options.logger.error({ err: error }, 'disk of the machines not looked at');
        }
        this.#isFailing = true;
      }
      await rest(LOOK_MILLISECONDS, signal);
    }
  }

  /** `now` in milliseconds, as of `performance.now()`. */
  async look(now: number): Promise<void> {
    const { minimumFree, freeBytes, relieve, machines: list } = this.#options;
    let free = await freeBytes();
    if (free < minimumFree) {
      await relieve();
      free = await freeBytes();
    }
    this.#roomBytes = Math.max(0, free - minimumFree);
    const machines = list();
    this.#forgetOthers(machines);
    await this.#measure(machines, free, now);
    this.#noticePauses(machines, free, now);
    if (free < minimumFree) {
      this.#pauseOne(machines, free);
    } else {
      this.#options.replenish();
      this.#pauseBelow = minimumFree;
      this.#unpauseOne(free, now);
    }
  }

  /** Also pauses by an earlier agent, and by QEMU, make room enough for a while. */
  #noticePauses(machines: readonly GuardedMachine[], free: number, now: number): void {
    const before = this.#pausedSince;
    const paused = machines.filter((machine) => machine.paused);
    if (paused.some(({ uid }) => !before.has(uid))) {
      this.#pauseBelow = Math.min(this.#pauseBelow, this.#afterPause(free));
    }
    this.#pausedSince = new Map(paused.map(({ uid }) => [uid, before.get(uid) ?? now]));
  }

  #afterPause(free: number): number {
    return free - this.#options.minimumFree / STEPS;
  }

  async #measure(machines: readonly GuardedMachine[], free: number, now: number): Promise<void> {
    if (free >= this.#options.minimumFree * NEAR_FACTOR) {
      this.#growth.clear();
      return;
    }
    const sizes = new Map<string, number>();
    for (const { uid } of machines) {
      sizes.set(uid, await this.#options.sizeOf(uid));
    }
    this.#growth.note(sizes, now);
  }

  /** Drops requests that are done or of no use any more, and those of machines that are gone. */
  #forgetOthers(machines: readonly GuardedMachine[]): void {
    const byUid = new Map(machines.map((machine) => [machine.uid, machine]));
    for (const [uid, wish] of this.#wishes) {
      const machine = byUid.get(uid);
      const isDone = machine === undefined || machine.paused === (wish === 'pause');
      const isVoid = wish === 'pause' && this.#roomBytes > 0;
      if (isDone || isVoid) {
        this.#wishes.delete(uid);
      }
    }
  }

  #pauseOne(machines: readonly GuardedMachine[], free: number): void {
    for (const [uid, wish] of this.#wishes) {
      if (wish === 'unpause') {
        this.#wishes.delete(uid);
      }
    }
    const growing = machines.filter(
      ({ uid, paused }) => !paused && !this.#wishes.has(uid) && this.#growth.of(uid) > 0,
    );
    const [worst] = growing.toSorted((a, b) => this.#growth.of(b.uid) - this.#growth.of(a.uid));
    if (worst === undefined || free >= this.#pauseBelow) {
      return;
    }
    const { minimumFree, logger } = this.#options;
    const grownBytes = this.#growth.of(worst.uid);
    logger.warn({ uid: worst.uid, grownBytes, free, minimumFree }, 'disk nearly full, pausing a machine');
    this.#pauseBelow = this.#afterPause(free);
    this.#ask(worst.uid, 'pause');
  }

  /** Each in its turn: the one that was paused first. */
  #unpauseOne(free: number, now: number): void {
    const { minimumFree, logger } = this.#options;
    const enough = Math.max(minimumFree * ROOM_FACTOR, LEAST_ROOM_BYTES);
    const [next] = [...this.#pausedSince].toSorted(([, a], [, b]) => a - b).map(([uid]) => uid);
    if (next === undefined || free < enough || now < this.#nextUnpause) {
      return;
    }
    this.#nextUnpause = now + UNPAUSE_MILLISECONDS;
    logger.info({ uid: next, free }, 'disk has room again, a machine goes on');
    this.#ask(next, 'unpause');
  }

  #ask(uid: string, wish: DiskWish): void {
    this.#wishes.set(uid, wish);
    this.#options.changed(uid);
  }
}
