import { expect, it } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import type { ConfigMap } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { HostApprovals } from './approvals.ts';

const NOW = Date.parse('2030-01-01T00:00:00Z');
const NEXT_YEAR = '2031-01-01T00:00:00.000Z';

/** Returns approvals whose cache shows an expired name, and the stored ConfigMap, which `sync` copies into the cache. */
function approvalsBehind(): { approvals: HostApprovals; stored: () => object | undefined; sync: () => void } {
  const metadata = { namespace: 'berth-system', name: 'berth-hosts', resourceVersion: '1' };
  let stored: ConfigMap = { metadata, data: { rejoins: '2029-12-31T00:00:00.000Z' } } as unknown as ConfigMap;
  let cached = stored;
  const cache = { get: () => cached, resourceVersion: '1' };
  const mergePatch = async (_type: unknown, _ref: unknown, patch: ConfigMap) => {
    const { resourceVersion = '' } = stored.metadata;
    if ((patch.metadata?.resourceVersion ?? resourceVersion) !== resourceVersion) {
      throw new ApiError('the object has been modified', { status: 409, reason: 'Conflict' });
    }
    const data = Object.entries({ ...stored.data, ...patch.data }).filter(([, until]) => until !== null);
    stored = {
      ...stored,
      metadata: { ...metadata, resourceVersion: `${Number(resourceVersion) + 1}` },
      data: Object.fromEntries(data),
    };
    return await Promise.resolve(stored);
  };
  const approvals = new HostApprovals({
    client: { mergePatch } as unknown as KubeClient,
    approvals: { cache, readSince: 0, cutIfStale: () => undefined } as unknown as Informer<ConfigMap>,
    config: { namespaces: { system: 'berth-system' } } as never,
    clock: () => NOW,
  });
  const sync = () => {
    cached = stored;
    cache.resourceVersion = stored.metadata.resourceVersion ?? '';
  };
  return { approvals, stored: () => stored.data, sync };
}

it('a fresh approval stays while the cache shows only the expired approval of the same name', async () => {
  const { approvals, stored, sync } = approvalsBehind();
  await approvals.remember('rejoins', Date.parse(NEXT_YEAR));
  expect(approvals.ready()).toBe(false);
  await expect(approvals.remember('joins', Date.parse(NEXT_YEAR))).rejects.toThrow('modified');
  expect(stored()).toEqual({ rejoins: NEXT_YEAR });
  sync();
  expect(approvals.ready()).toBe(true);
  await approvals.remember('joins', Date.parse(NEXT_YEAR));
  expect(stored()).toEqual({ rejoins: NEXT_YEAR, joins: NEXT_YEAR });
});

it('an expired approval is removed with the next approval', async () => {
  const { approvals, stored } = approvalsBehind();
  await approvals.remember('joins', Date.parse(NEXT_YEAR));
  expect(stored()).toEqual({ joins: NEXT_YEAR });
});
