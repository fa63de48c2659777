import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import { hypervisorUsers, MachineUsers, machineUsers, overlapIn, UserRangeError } from './users.ts';

const RANGE = { first: 1_900_000_000, count: 100 };
const logger = pino({ level: 'silent' });

describe('users of machines', () => {
  it('are never given twice, stay within the range, and do not include the reader of images', () => {
    const users = new MachineUsers(RANGE);
    const taken = new Set<number>();
    for (let machine = 0; machine < RANGE.count - 1; machine += 1) {
      const { uid, gid } = users.choose(`machine-${machine}`, taken);
      expect(taken.has(uid)).toBe(false);
      expect(gid).toBe(uid);
      taken.add(uid);
    }
    expect(Math.min(...taken)).toBe(users.reader.uid + 1);
    expect(Math.max(...taken)).toBe(RANGE.first + RANGE.count - 1);
    expect(() => users.choose('one more', taken)).toThrow(UserRangeError);
  });

  it('follow from the machine, so that a released number is seldom given next', () => {
    const users = new MachineUsers(RANGE);
    expect(users.choose('a', new Set())).toEqual(users.choose('a', new Set()));
    expect(users.choose('a', new Set())).not.toEqual(users.choose('b', new Set()));
  });

  it('are all confined, also machines that were made while another range was configured', () => {
    const records = [RANGE.first - 1, RANGE.first, RANGE.first + RANGE.count - 1, RANGE.first + 5000].map(
      (uid) => ({ runAs: { uid, gid: uid } }),
    );
    expect(hypervisorUsers(RANGE, [...records, ...records, { runAs: undefined }])).toEqual([
      '1900000000-1900000099',
      '65107',
      '1899999999',
      '1900005000',
    ]);
  });

  it('may be no user, group or subordinate number of the host', () => {
    const range = { first: 100_000, count: 10 };
    expect(overlapIn('passwd', 'root:x:0:0::/root:/bin/sh\neve:x:100009:1::/:/bin/sh', range)).toMatch(
      /^eve/,
    );
    expect(
      overlapIn('passwd', 'eve:x:100010:1::/:/bin/sh\nbob:x:99999:1::/:/bin/sh\n', range),
    ).toBeUndefined();
    expect(overlapIn('subuid', 'eve:65536:65536', range)).toBe('eve:65536:65536');
    expect(overlapIn('subgid', 'eve:65536:34464\neve:100010:1', range)).toBeUndefined();
  });

  it('are refused at start with the name of the setting', async ({ skip }) => {
    if (process.getuid?.() !== 0) {
      skip('only root has users to give');
    }
    await expect(machineUsers({ first: 0, count: 2 }, [], logger)).rejects.toThrow(
      /^The users 0 to 1 of machines\.users overlap with "root:.*" in \/etc\/passwd\. Set machines\.users\.first to a different value$/,
    );
    expect(await machineUsers(RANGE, [], logger)).toBeInstanceOf(MachineUsers);
  });

  it('are refused if a machine of an earlier range would be the reader of images', async ({ skip }) => {
    if (process.getuid?.() !== 0) {
      skip('only root has users to give');
    }
    const of = (uid: number) => [{ uid: 'machine-1', runAs: { uid, gid: uid } }];
    await expect(machineUsers(RANGE, of(RANGE.first), logger)).rejects.toThrow(
      'The user 1900000000 belongs to machine machine-1, which started with an earlier range of machines.users. Set machines.users.first to a different value',
    );
    expect(await machineUsers(RANGE, of(RANGE.first + 1), logger)).toBeInstanceOf(MachineUsers);
  });
});
