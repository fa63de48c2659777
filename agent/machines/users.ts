/**
 * A user for each machine: a hypervisor that a guest has taken over reaches no file and no process of another machine.
 * The model is Firecracker's jailer, which is given a uid of its own for each machine, and libvirt's `+dac`.
 */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import type { Logger } from 'pino';
import { codeOf } from '../../base/errors.ts';
import type { RunAs } from '../../base/exec.ts';

export interface UserRange {
  /** The first number. */
  first: number;
  /** How many numbers. */
  count: number;
}

/** Machines of agents that had one user for all of them. In the range that Debian's policy gives to nobody (65000–65533). */
export const SHARED_RUN_AS: RunAs = { uid: 65_107, gid: 65_107 };

/** The range cannot be used on this host. */
export class UserRangeError extends Error {
  override readonly name = 'UserRangeError';

  constructor(what: string) {
    super(`machines.users: ${what}`);
  }
}

export class MachineUsers {
  /** Programs that read images before any machine has them, and the group that may read images. Never a machine's. */
  readonly reader: RunAs;
  readonly #range: UserRange;

  constructor(range: UserRange) {
    this.#range = range;
    this.reader = { uid: range.first, gid: range.first };
  }

  /**
   * A user that none of `taken` is. It follows from the machine's own uid, so that a number is seldom given to another
   * machine soon after.
   *
   * @throws UserRangeError when none is free.
   */
  choose(machineUid: string, taken: ReadonlySet<number>): RunAs {
    const { first, count } = this.#range;
    const offered = count - 1;
    const start = createHash('sha256').update(machineUid).digest().readUInt32BE(0) % offered;
    for (let step = 0; step < offered; step += 1) {
      const number = first + 1 + ((start + step) % offered);
      if (!taken.has(number)) {
        return { uid: number, gid: number };
      }
    }
    throw new UserRangeError(`all ${offered} users are taken by machines of this host: make count larger`);
  }
}

/** Where users and groups are told of: of the agent's container, and of its host. A missing file tells of none. */
const ROOTS = ['', '/proc/1/root'];

/**
 * Undefined where the agent is not root, which is said in the log.
 *
 * @throws UserRangeError when the range holds a user or group of this host, or numbers that the agent's user namespace does
 * not have.
 */
export async function machineUsers(range: UserRange, logger: Logger): Promise<MachineUsers | undefined> {
  if (process.getuid?.() !== 0) {
    logger.warn(
      'the agent is not root: machines run as its own user, without limits of memory, processes and cpu',
    );
    return undefined;
  }
  await requireMapped(range);
  for (const root of ROOTS) {
    for (const name of ['passwd', 'group', 'subuid', 'subgid']) {
      const file = `${root}/etc/${name}`;
      const clash = overlapIn(name, await textOf(file), range);
      if (clash !== undefined) {
        throw new UserRangeError(`${shown(range)} overlap with "${clash}" in ${file}: choose another first`);
      }
    }
  }
  return new MachineUsers(range);
}

/** The line of a file of users, groups or subordinate numbers that meets the range. */
export function overlapIn(kind: string, text: string, { first, count }: UserRange): string | undefined {
  return text.split('\n').find((line) => {
    const [, second, third] = line.split(':');
    // passwd and group: NAME:PASSWORD:NUMBER. subuid and subgid: NAME:FIRST:COUNT.
    const isRange = kind.startsWith('sub');
    const low = Number(isRange ? second : third);
    const high = isRange ? low + Number(third) - 1 : low;
    return third !== undefined && third !== '' && low < first + count && high >= first;
  });
}

/** Lines of `INSIDE OUTSIDE COUNT`; the initial namespace has one that holds all numbers. */
async function requireMapped(range: UserRange): Promise<void> {
  for (const file of ['/proc/self/uid_map', '/proc/self/gid_map']) {
    const text = await textOf(file);
    const lines = text.split('\n').map((line) => line.trim().split(/\s+/).map(Number));
    const isMapped = lines.some(
      ([inside = 0, , count = 0]) => inside <= range.first && range.first + range.count <= inside + count,
    );
    if (text !== '' && !isMapped) {
      throw new UserRangeError(`${shown(range)} are not all in the user namespace of the agent (${file})`);
    }
  }
}

function shown({ first, count }: UserRange): string {
  return `the numbers ${first} to ${first + count - 1}`;
}

async function textOf(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch (error) {
    // Not there, or of a host that a container may not look at.
    if (codeOf(error) !== undefined) {
      return '';
    }
    throw error;
  }
}
