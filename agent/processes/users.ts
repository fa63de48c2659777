/**
 * Gives each machine a separate Linux user. If a guest takes control of its hypervisor, the guest still cannot reach files or processes of
 * other machines. Firecracker's jailer, which uses one uid for each machine, and libvirt's `+dac` work the same way.
 */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import type { Logger } from 'pino';
import { isOfSystem, undefinedIf } from '../../base/errors.ts';
import type { RunAs } from '../../base/exec.ts';

export interface UserRange {
  /** Lowest user number in the range. */
  first: number;
  /** Number of users in the range. */
  count: number;
}

/**
 * User of the machines that earlier versions of the agent started. Those versions had one user for all machines. Debian's policy
 * reserves the range of this number (65000–65533), so no package uses this number.
 */
export const SHARED_RUN_AS: RunAs = { uid: 65_107, gid: 65_107 };

/**
 * Returns the user of a machine's process. `own` is the machine's own user, or undefined if the machine has none. If the agent is root, the
 * result is never undefined, because no machine runs as root.
 */
export function processUser(isRoot: boolean, own: RunAs | undefined): RunAs | undefined {
  return isRoot ? (own ?? SHARED_RUN_AS) : undefined;
}

/** Error for a range of user ids that cannot be used on this host. */
export class UserRangeError extends Error {
  override readonly name = 'UserRangeError';
}

export class MachineUsers {
  /**
   * User of the programs that read images before any machine uses them. The group of this user has the right to read images. No machine
   * runs as this user.
   */
  readonly reader: RunAs;
  readonly #range: UserRange;

  constructor(range: UserRange) {
    this.#range = range;
    this.reader = { uid: range.first, gid: range.first };
  }

  /**
   * Returns a user whose number is not in `taken`. The search begins at a number that is computed from a hash of `machineUid`. Therefore a
   * new machine seldom gets a number that has become free only recently.
   *
   * @throws UserRangeError when all numbers are in use.
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
    throw new UserRangeError(
      `Machines use all ${offered} Linux users that are set aside for them. Set machines.users.count to a larger value`,
    );
  }
}

/**
 * Returns all Linux users under which hypervisors of this host can run, in the form of nftables: the configured range, the user of earlier
 * versions of the agent, and the users in the records of machines. A machine keeps its user until it is removed, so a record can have a user
 * from a range that was configured earlier. Rules that protect the host from hypervisors must name all these users.
 */
export function hypervisorUsers(
  { first, count }: UserRange,
  records: readonly Pick<UserRecord, 'runAs'>[],
): string[] {
  const last = first + count - 1;
  const users = [SHARED_RUN_AS, ...records.flatMap(({ runAs }) => runAs ?? [])];
  // nftables refuses a set with overlapping ranges.
  const others = users.map(({ uid }) => uid).filter((uid) => uid < first || uid > last);
  return [`${first}-${last}`, ...[...new Set(others)].map(String)];
}

interface UserRecord {
  readonly uid: string;
  runAs?: RunAs | undefined;
}

interface UserRecords {
  list(): readonly UserRecord[];
  update(record: UserRecord, change: Pick<UserRecord, 'runAs'>): void;
}

/**
 * Returns the machine's own user. If the record of the machine has no user, the function chooses one and stores it in the record. A machine
 * that an earlier version of the agent started gets a user at its next start. The user stays in the record until the machine is removed. If
 * the agent is not root, the function chooses no user. The result is then undefined, unless the record already has a user.
 */
export function ownUser(
  { users, records }: { users?: MachineUsers | undefined; records: UserRecords },
  record: UserRecord,
): RunAs | undefined {
  if (record.runAs === undefined && users !== undefined) {
    const taken = new Set(records.list().flatMap(({ runAs }) => runAs?.uid ?? []));
    records.update(record, { runAs: users.choose(record.uid, taken) });
  }
  return record.runAs;
}

/**
 * Root folders of the agent's container and of its host. The folder `etc` in each of them has lists of users and groups. A missing file
 * counts as an empty list.
 */
const ROOTS = ['', '/proc/1/root'];

/**
 * Checks the range and returns the users. If the agent is not root, the function writes a warning to the log and returns undefined.
 *
 * @throws UserRangeError when the range contains a user or group of this host, or numbers outside the agent's user namespace. Also when its
 * first user, the reader of images, is the user of a machine that started with an earlier range. That machine could read all images.
 */
export async function machineUsers(
  range: UserRange,
  records: readonly UserRecord[],
  logger: Logger,
): Promise<MachineUsers | undefined> {
  if (process.getuid?.() !== 0) {
    logger.warn(
      'The agent is not root, so machines run as the user of the agent and without limits of memory, processes and CPU',
    );
    return undefined;
  }
  await requireMapped(range);
  for (const root of ROOTS) {
    for (const name of ['passwd', 'group', 'subuid', 'subgid']) {
      const file = `${root}/etc/${name}`;
      const clash = overlapIn(name, await readText(file), range);
      if (clash !== undefined) {
        throw new UserRangeError(
          `${shown(range)} overlap with "${clash}" in ${file}. Set machines.users.first to a different value`,
        );
      }
    }
  }
  const users = new MachineUsers(range);
  const owner = records.find(({ runAs }) => runAs?.uid === users.reader.uid);
  if (owner !== undefined) {
    throw new UserRangeError(
      `The user ${range.first} belongs to machine ${owner.uid}, which started with an earlier range of machines.users. Set machines.users.first to a different value`,
    );
  }
  return users;
}

/**
 * Returns the first line of `text` that assigns a number in the range to a user or group. `text` is the content of a file. `kind` is the
 * name of this file, for example `passwd`.
 */
export function overlapIn(kind: string, text: string, { first, count }: UserRange): string | undefined {
  return text.split('\n').find((line) => {
    const [, second, third] = line.split(':');
    // The format of passwd and group is NAME:PASSWORD:NUMBER. The format of subuid and subgid is NAME:FIRST:COUNT.
    const isRange = kind.startsWith('sub');
    const low = Number(isRange ? second : third);
    const high = isRange ? low + Number(third) - 1 : low;
    return third !== undefined && third !== '' && low < first + count && high >= first;
  });
}

/**
 * Checks that each map of the user namespace (users, groups) has a line that contains the whole range. A line is `INSIDE OUTSIDE COUNT`.
 * In the initial namespace, this check always succeeds, because one line contains all numbers.
 *
 * @throws UserRangeError when a map has no such line.
 */
async function requireMapped(range: UserRange): Promise<void> {
  for (const file of ['/proc/self/uid_map', '/proc/self/gid_map']) {
    const text = await readText(file);
    const lines = text.split('\n').map((line) => line.trim().split(/\s+/).map(Number));
    const isMapped = lines.some(
      ([inside = 0, , count = 0]) => inside <= range.first && range.first + range.count <= inside + count,
    );
    if (text !== '' && !isMapped) {
      throw new UserRangeError(
        `${shown(range)} must all be in the user namespace of the agent, but ${file} does not contain all of them`,
      );
    }
  }
}

function shown({ first, count }: UserRange): string {
  return `The users ${first} to ${first + count - 1} of machines.users`;
}

async function readText(file: string): Promise<string> {
  // If the file cannot be read, it counts as empty. Possible causes are that the file is missing, or that the container has no right to
  // read a file of the host.
  return (await undefinedIf(isOfSystem, readFile(file, 'utf8'))) ?? '';
}
