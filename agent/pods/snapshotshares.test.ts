import { describe, expect, it } from 'vitest';
import { SnapshotShares } from './snapshotshares.ts';

const GIBIBYTE = 2 ** 30;

function use(tenant: string, gibibytes: number): { tenants: string[]; sizeBytes: number } {
  return { tenants: [tenant], sizeBytes: gibibytes * GIBIBYTE };
}

describe('the share of a namespace', () => {
  it('is half of the space that snapshots have and that is free, and counts all its snapshots on the host', async () => {
    const shares = new SnapshotShares();
    const space = {
      kept: [use('greedy', 30), use('other', 10), use('greedy', 15)],
      freeBytes: 45 * GIBIBYTE,
    };
    const take = async (tenant: string, gibibytes: number): Promise<string> =>
      await shares.within({ tenant, bytes: gibibytes * GIBIBYTE }, space, async () => 'taken');
    expect(await take('greedy', 5)).toBe('taken');
    await expect(take('greedy', 6)).rejects.toMatchObject({
      reason: 'DiskFull',
      message: 'Snapshots of the namespace take 45Gi of their 50Gi on the host. This one adds 6Gi',
    });
    expect(await take('other', 40)).toBe('taken');
  });

  it('counts the snapshots that are being taken, until they are taken or have failed', async () => {
    const shares = new SnapshotShares();
    const space = { kept: [], freeBytes: 10 * GIBIBYTE };
    const { promise, resolve } = Promise.withResolvers<undefined>();
    const take = async (work: () => Promise<undefined>): Promise<undefined> =>
      await shares.within({ tenant: 'team', bytes: 3 * GIBIBYTE }, space, work);
    const first = take(async () => await promise);
    await expect(take(async () => undefined)).rejects.toMatchObject({ reason: 'DiskFull' });
    resolve(undefined);
    await first;
    await expect(take(async () => await Promise.reject(new Error('failed')))).rejects.toThrow('failed');
    expect(await take(async () => undefined)).toBeUndefined();
  });
});
