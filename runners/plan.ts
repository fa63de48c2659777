/**
 * Decides which VMs of a set are made and which are deleted. All functions are pure. The statistics of GitHub alone decide how many VMs
 * there should be. News about single jobs only help to find VMs that have done their work, because GitHub cuts, repeats and loses news.
 */
import type { Statistics } from '../api/v1alpha1/runnerset.ts';
import type { KnownRunner } from './github/client.ts';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
/** Time in milliseconds that GitHub may need to list a runner that it has just registered. */
const LISTED_MILLISECONDS = MINUTE;
/** Time in milliseconds in which the runner of a Ready VM must come online. */
export const ONLINE_MILLISECONDS = 5 * MINUTE;
/** The same time for a VM that runs and is not Ready. Guests of some images never tell that they are ready. */
const BOOT_MILLISECONDS = 20 * MINUTE;
/** Age in milliseconds at which a VM without a job is replaced. GitHub forgets a runner that never came online after a day. */
export const IDLE_MILLISECONDS = 20 * HOUR;
/** Largest part of {@link IDLE_MILLISECONDS} that is added for some VMs, so that a set is not replaced at once. */
const IDLE_JITTER = 0.1;
/** Time in milliseconds that a guest has for its shutdown after its job. */
export const SHUTDOWN_MILLISECONDS = 2 * MINUTE;
/** Number of lists in a row without the runner of a VM after which the VM counts as done. One list can be late. */
const MISSES = 2;
/** Time in milliseconds for which there must be too many VMs before one is removed. Statistics and VMs never change at the same time. */
export const SURPLUS_MILLISECONDS = MINUTE;
/**
 * Time in milliseconds for which a VM that has ended still counts. Its guest shuts down at the end of its job, and the statistics of GitHub
 * still have the job for a moment. Without this time, an unneeded VM would take its place.
 */
export const LEAVING_MILLISECONDS = 10_000;
/**
 * Life of a VM in milliseconds after its last renewal. The operator deletes the VM at its end, so that no VM stays if nobody serves the set
 * any more. It is long, because a VM with a job must outlive a fault of this program.
 */
export const ALIVE_MILLISECONDS = 12 * HOUR;
/** Share of a set that one pass may remove because of an age, so that a fault of GitHub does not empty the set. */
const PASS_SHARE = 1 / 4;
/** Number of VMs that one pass makes at most. Further ones follow in the next pass. */
const CREATIONS = 20;

/** What a VM of the set shows. Times are in milliseconds since the epoch. */
export interface RunnerVM {
  readonly name: string;
  readonly createdAt: number;
  /** First run of the machine. It is undefined if it has not run. */
  readonly runningAt: number | undefined;
  /** Time since which the VM is Ready. It is undefined if it is not. */
  readonly readyAt: number | undefined;
  /** Time at which the operator deletes the VM. It is undefined if somebody has removed the time. */
  readonly aliveUntil: number | undefined;
  /** Whether the VM has a host. */
  readonly isPlaced: boolean;
  /** Why the VM has no host yet, for people. */
  readonly obstacle?: string | undefined;
  /** Whether the VM is being deleted, or has ended and is about to be deleted. */
  readonly isEnding: boolean;
}

/** What earlier passes and the news of GitHub left. All of it may be lost. */
export interface Memory {
  /** Names of runners that began a job. */
  readonly begun: ReadonlySet<string>;
  /** Names of runners whose job has ended, with the time of the news. */
  readonly done: ReadonlyMap<string, number>;
  /** Number of lists in a row without the runner of a VM, or with a runner whose VM is missing. */
  readonly misses: ReadonlyMap<string, number>;
  /** Time since which the runner of a VM is not online. */
  readonly offlineSince: ReadonlyMap<string, number>;
  /** Names of the VMs that the last pass counted as live. */
  readonly live: ReadonlySet<string>;
  /** VMs that were live and have ended, with the time when a pass saw it. */
  readonly leaving: ReadonlyMap<string, number>;
  /** Time since which there are too many VMs. */
  readonly surplusSince: number | undefined;
  /** Time of the list that was counted last. */
  readonly countedAt: number | undefined;
}

export const NO_MEMORY: Memory = {
  begun: new Set(),
  done: new Map(),
  misses: new Map(),
  offlineSince: new Map(),
  live: new Set(),
  leaving: new Map(),
  surplusSince: undefined,
  countedAt: undefined,
};

/** Runners of the set that GitHub lists. */
export interface Listed {
  /** Time when the list was asked for. */
  readonly at: number;
  readonly runners: readonly KnownRunner[];
}

export interface SetFacts {
  readonly min: number;
  readonly max: number;
  /** It is undefined before GitHub has sent any. Then nothing is made, and nothing is removed as surplus. */
  readonly statistics: Statistics | undefined;
  readonly vms: readonly RunnerVM[];
  readonly listed: Listed;
  readonly memory: Memory;
  readonly now: number;
}

export type RemovalCause = 'JobEnded' | 'RunnerGone' | 'NotOnline' | 'TooOld' | 'Surplus';

/**
 * A VM to delete. GitHub must remove its runner first. It refuses if the runner has a job, and the VM then stays. Therefore no VM is deleted
 * while it has a job, however old the facts of the plan are.
 */
export interface Removal {
  readonly name: string;
  readonly cause: RemovalCause;
}

export interface SetPlan {
  /** Number of VMs that there should be. It is undefined before GitHub has sent statistics. */
  readonly wanted: number | undefined;
  /** VMs that have a job or can take one. */
  readonly live: readonly RunnerVM[];
  /** Number of VMs to make. */
  readonly create: number;
  readonly remove: readonly Removal[];
  /** Names of the VMs whose life is renewed. */
  readonly prolong: readonly string[];
  /** Names of runners without a VM, which GitHub should forget. */
  readonly orphans: readonly string[];
  readonly memory: Memory;
}

export function planSet(facts: SetFacts): SetPlan {
  const { statistics, min, max, vms, now } = facts;
  const counted = countLooks(facts);
  const remaining = vms.filter(({ isEnding }) => !isEnding);
  const live = liveVMs(remaining, counted);
  const wanted = countWanted({ min, max }, statistics);
  const surplus = wanted === undefined ? 0 : live.length - wanted;
  const leaving = findLeaving(facts, remaining);
  const memory: Memory = {
    ...counted,
    live: new Set(live.map(({ name }) => name)),
    leaving,
    surplusSince: surplus > 0 ? (counted.surplusSince ?? now) : undefined,
  };
  const missing =
    wanted === undefined ? 0 : Math.min(-surplus - leaving.size, max - remaining.length, CREATIONS);
  return {
    wanted,
    live,
    create: Math.max(0, missing),
    remove: removals({ ...facts, memory }, remaining, live, surplus),
    prolong: live.filter(({ aliveUntil }) => isHalfOver(aliveUntil, now)).map(({ name }) => name),
    orphans: orphans({ ...facts, memory }),
    memory,
  };
}

/** Returns the number of VMs that there should be. It is undefined before GitHub has sent statistics. */
export function countWanted(
  { min = 0, max }: { readonly min?: number | undefined; readonly max: number },
  statistics: Statistics | undefined,
): number | undefined {
  return statistics && Math.min(max, min + statistics.totalAssignedJobs);
}

function isHalfOver(aliveUntil: number | undefined, now: number): boolean {
  return aliveUntil !== undefined && aliveUntil - now < ALIVE_MILLISECONDS / 2;
}

/** Returns the VMs that have just ended, and of whose jobs GitHub has not told the end. */
function findLeaving({ memory, now }: SetFacts, remaining: readonly RunnerVM[]): Map<string, number> {
  const present = new Set(remaining.map(({ name }) => name));
  const gone = [...memory.live]
    .filter((name) => !present.has(name))
    .map((name): [string, number] => [name, now]);
  return new Map(
    [...gone, ...memory.leaving].filter(
      ([name, since]) => !memory.done.has(name) && now - since < LEAVING_MILLISECONDS,
    ),
  );
}

/** Counts a new list of GitHub, and forgets what is about VMs and runners that no longer exist. */
function countLooks({ vms, listed, memory, now }: SetFacts): Memory {
  const isNew = memory.countedAt !== listed.at;
  const runners = new Map(listed.runners.map((runner) => [runner.name, runner]));
  const existing = new Set([...vms.map(({ name }) => name), ...runners.keys()]);
  const misses = new Map<string, number>();
  const offlineSince = new Map<string, number>();
  const count = (name: string): void => {
    misses.set(name, (memory.misses.get(name) ?? 0) + (isNew ? 1 : 0));
  };
  for (const { name, createdAt } of vms) {
    const runner = runners.get(name);
    if (runner === undefined && listed.at - createdAt >= LISTED_MILLISECONDS) {
      count(name);
    }
    if (runner?.isOnline === false) {
      offlineSince.set(name, memory.offlineSince.get(name) ?? now);
    }
    runners.delete(name);
  }
  for (const name of runners.keys()) {
    count(name);
  }
  return {
    begun: new Set([...memory.begun].filter((name) => existing.has(name))),
    done: new Map([...memory.done].filter(([name]) => existing.has(name))),
    misses,
    offlineSince,
    live: memory.live,
    leaving: memory.leaving,
    surplusSince: memory.surplusSince,
    countedAt: listed.at,
  };
}

/** Returns the VMs that have a job or can take one. */
export function liveVMs(vms: readonly RunnerVM[], memory: Memory): RunnerVM[] {
  return vms.filter(({ name, isEnding }) => !isEnding && !isSpent(name, memory));
}

/** Returns whether the VM has done its work, or lost its runner. It takes no job any more. */
function isSpent(name: string, { done, misses }: Memory): boolean {
  return done.has(name) || (misses.get(name) ?? 0) > 0;
}

function removals(
  facts: SetFacts,
  remaining: readonly RunnerVM[],
  live: readonly RunnerVM[],
  surplus: number,
): Removal[] {
  const { memory, now } = facts;
  const spent = remaining.flatMap(({ name }) => removeSpent(name, memory, now));
  const idle = live.filter(({ name }) => !isBusy(name, facts));
  const aged = idle.flatMap((vm) => removeAged(vm, memory, now));
  const some = aged.slice(0, Math.max(1, Math.floor(live.length * PASS_SHARE)));
  const others = idle.filter(({ name }) => !some.some((removal) => removal.name === name));
  const isLasting = memory.surplusSince !== undefined && now - memory.surplusSince >= SURPLUS_MILLISECONDS;
  const extra = isLasting ? others.toSorted(byUse).slice(0, Math.max(0, surplus - some.length)) : [];
  return [...spent, ...some, ...extra.map(({ name }) => ({ name, cause: 'Surplus' as const }))];
}

function removeSpent(name: string, { done, misses }: Memory, now: number): Removal[] {
  const doneAt = done.get(name);
  if (doneAt !== undefined && now - doneAt >= SHUTDOWN_MILLISECONDS) {
    return [{ name, cause: 'JobEnded' }];
  }
  return (misses.get(name) ?? 0) >= MISSES ? [{ name, cause: 'RunnerGone' }] : [];
}

function removeAged(vm: RunnerVM, { offlineSince }: Memory, now: number): Removal[] {
  const { name, createdAt, readyAt, runningAt } = vm;
  const hasBeen = (since: number | undefined, time: number): boolean =>
    since !== undefined && now - since >= time;
  const isUp = hasBeen(readyAt, ONLINE_MILLISECONDS) || hasBeen(runningAt, BOOT_MILLISECONDS);
  if (isUp && hasBeen(offlineSince.get(name), ONLINE_MILLISECONDS)) {
    return [{ name, cause: 'NotOnline' }];
  }
  return hasBeen(readyAt ?? createdAt, IDLE_MILLISECONDS * (1 + IDLE_JITTER * shareOf(name)))
    ? [{ name, cause: 'TooOld' }]
    : [];
}

/** Returns a number from 0 to 1 that is always the same for a name. */
function shareOf(name: string): number {
  let hash = 0;
  for (const character of name) {
    hash = (hash * 31 + (character.codePointAt(0) ?? 0)) % 1_000;
  }
  return hash / 1_000;
}

function isBusy(name: string, { listed, memory }: SetFacts): boolean {
  const isListedBusy = listed.runners.some((runner) => runner.name === name && runner.isBusy);
  return isListedBusy || (memory.begun.has(name) && !memory.done.has(name));
}

/** Order in which surplus VMs go: first those that are furthest from a job. */
function byUse(one: RunnerVM, other: RunnerVM): number {
  const [first, second] = [one, other].map(
    ({ isPlaced, readyAt }) => Number(isPlaced) + Number(readyAt !== undefined),
  );
  return (first ?? 0) - (second ?? 0) || other.createdAt - one.createdAt;
}

function orphans({ vms, listed, memory }: SetFacts): string[] {
  const names = new Set(vms.map(({ name }) => name));
  return listed.runners
    .map(({ name }) => name)
    .filter((name) => !names.has(name) && (memory.misses.get(name) ?? 0) >= MISSES);
}

/** Returns the memory with news about a job. A runner without a name cannot be remembered. */
export function rememberNews(
  memory: Memory,
  news: readonly { readonly type: string; readonly name: string | undefined }[],
  now: number,
): Memory {
  const begun = new Set(memory.begun);
  const done = new Map(memory.done);
  for (const { type, name } of news) {
    if (name === undefined || name === '') {
      continue;
    }
    if (type === 'JobStarted') {
      begun.add(name);
    }
    if (type === 'JobCompleted' && !done.has(name)) {
      done.set(name, now);
    }
  }
  return { ...memory, begun, done };
}
