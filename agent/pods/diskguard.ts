/**
 * Keeps space free on the host's disk, which all machines share. When that disk is full, QEMU stops every guest that writes. The guard acts
 * before the disk is full: it pauses the machine whose files have grown most, so that the other machines can continue to write. Each check
 * pauses at most one machine.
 */
import type { Logger } from 'pino';
import { rest } from '../../base/time.ts';

/** Time between two checks of the free disk space. In this time, writes at 2 GiB/s use half of the default `images.minimumFree`. */
const LOOK_MILLISECONDS = 500;
/**
 * While more than this multiple of `minimumFree` is free, the guard does not measure disk sizes, because it will not pause a machine soon.
 */
const NEAR_FACTOR = 2;
/**
 * After a pause, free space must shrink by `minimumFree / STEPS` before the next pause. Otherwise small writes of other machines would
 * pause those machines, too.
 */
const STEPS = 16;
/**
 * Multiple of `minimumFree` that must be free before paused machines continue. With less free space, these machines would soon be paused
 * again.
 */
const ROOM_FACTOR = 1.25;
/**
 * Bytes that must be free before paused machines continue, even if `minimumFree` is smaller. With less free space, QEMU would stop a guest
 * again.
 */
const LEAST_ROOM_BYTES = 64 * 1024 * 1024;
/**
 * Shortest time between the moments at which two paused machines continue. In this time, the guard sees how much the first machine writes.
 */
const UNPAUSE_MILLISECONDS = 5_000;

/** Message that tells users why a machine is paused. */
export const PAUSED_MESSAGE =
  'The machine is paused, because its disk grew while the host had less free space than images.minimumFree. It continues when the host has enough free space';

export type DiskWish = 'pause' | 'unpause';

export interface GuardedMachine {
  uid: string;
  paused: boolean;
}

export interface DiskGuardOptions {
  /** Bytes that must stay free: `images.minimumFree`. */
  minimumFree: number;
  freeBytes: () => Promise<number>;
  /** Returns the bytes on disk of all files of a machine. */
  sizeOf: (uid: string) => Promise<number>;
  /** Returns the machines whose guests are paused or can write. */
  machines: () => readonly GuardedMachine[];
  /** Removes images that no machine, cache entry or task uses, until `minimumFree` bytes are free. */
  relieve: () => Promise<void>;
  /** Restores the disk space that is reserved for the agent's own small files. */
  replenish: () => void;
  /** Called after the guard has made a request to the machine with this uid. */
  changed: (uid: string) => void;
  logger: Logger;
}

/** Period over which the growth of machines' disks is measured. A guest can fill a disk in seconds, so older growth is irrelevant. */
const WINDOW_MILLISECONDS = 10_000;

interface Sample {
  /** Time in milliseconds, on the clock of `performance.now()`. */
  readonly at: number;
  /** Sizes of the machines in bytes. The key is the machine's uid. */
  readonly sizes: ReadonlyMap<string, number>;
}

/** Measures the growth of the machines' disks in the last {@link WINDOW_MILLISECONDS}. */
class Growth {
  /** Samples of the last {@link WINDOW_MILLISECONDS}, the oldest first: about twenty, because the guard checks twice a second. */
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

  /** Returns the number of bytes by which the disk of this machine has grown since its first sample in the window; at least 0. */
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
  /** Time at which each machine was first seen paused, on the clock of `performance.now()`. The key is the machine's uid. */
  #pausedSince: ReadonlyMap<string, number> = new Map();
  #roomBytes = 0;
  /** Number of free bytes below which the next machine is paused. */
  #pauseBelow: number;
  #nextUnpause = 0;
  #isFailing = false;

  constructor(options: DiskGuardOptions) {
    this.#options = options;
    this.#pauseBelow = options.minimumFree;
  }

  /**
   * Returns the guard's request to the machine with this uid. Returns undefined if there is no request, or the machine has already done
   * what the guard requests.
   */
  wish(uid: string): DiskWish | undefined {
    return this.#wishes.get(uid);
  }

  /**
   * Removes the guard's request for a machine that starts again. The guard might not have noticed that the earlier run has ended, so it
   * might still have a request from that run.
   */
  startsAnew(uid: string): void {
    this.#wishes.delete(uid);
  }

  /** Returns how many bytes more than `minimumFree` were free at the last check; 0 before the first check. */
  get roomBytes(): number {
    return this.#roomBytes;
  }

  /** Checks the disk until the signal aborts. Continues after a failed check, and logs only the first of several failures in a row. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        await this.look(performance.now());
        this.#isFailing = false;
      } catch (error) {
        if (!this.#isFailing) {
          this.#options.logger.error(
            { err: error },
            'The free space for the disks of machines could not be checked',
          );
        }
        this.#isFailing = true;
      }
      await rest(LOOK_MILLISECONDS, signal);
    }
  }

  /** Checks the disk once. `now` is in milliseconds, on the clock of `performance.now()`. */
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

  /**
   * Lowers the limit `#pauseBelow` if a machine was paused since the last check, so that one pause does not cause the next pause. It does
   * not matter whether the guard, an earlier process of the agent, or QEMU paused the machine.
   */
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

  /** Drops the guard's requests that are fulfilled or no longer necessary. Also drops requests to machines that are not in `machines`. */
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
    logger.warn(
      { uid: worst.uid, grownBytes, free, minimumFree },
      'The disk is nearly full, so a machine is paused',
    );
    this.#pauseBelow = this.#afterPause(free);
    this.#ask(worst.uid, 'pause');
  }

  /** If enough disk space is free, asks the machine that has been paused longest to continue. */
  #unpauseOne(free: number, now: number): void {
    const { minimumFree, logger } = this.#options;
    const enough = Math.max(minimumFree * ROOM_FACTOR, LEAST_ROOM_BYTES);
    const [next] = [...this.#pausedSince].toSorted(([, a], [, b]) => a - b).map(([uid]) => uid);
    if (next === undefined || free < enough || now < this.#nextUnpause) {
      return;
    }
    this.#nextUnpause = now + UNPAUSE_MILLISECONDS;
    logger.info({ uid: next, free }, 'The disk has enough free space again, so a machine continues');
    this.#ask(next, 'unpause');
  }

  #ask(uid: string, wish: DiskWish): void {
    this.#wishes.set(uid, wish);
    this.#options.changed(uid);
  }
}
