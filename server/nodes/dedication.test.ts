import { expect, it } from 'vitest';
import { DEDICATED_KEY } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Node } from '../../kube/core.ts';
import { dedicate } from './dedication.ts';

const DEFAULT = 'platform-default';

/** Moves a host that has the label for `dedicated`. Resolves with the label after the move. */
async function move(dedicated: string | undefined, from: string | undefined, to: string | undefined) {
  let labels: Record<string, string | null> = dedicated === undefined ? {} : { [DEDICATED_KEY]: dedicated };
  const client = {
    get: async () => ({ metadata: { name: 'host-1', resourceVersion: '1', labels } }),
    list: async () => ({ items: [] }),
    mergePatch: async (_type: unknown, _ref: unknown, { metadata }: { metadata: Node['metadata'] }) => {
      labels = { ...labels, ...metadata.labels };
    },
  } as unknown as KubeClient;
  await dedicate(client, { host: 'host-1', from, to }, DEFAULT);
  return labels[DEDICATED_KEY] ?? undefined;
}

it('moves a host whose label names the default namespace', async () => {
  expect(await move(DEFAULT, undefined, 'platform-a')).toBe('platform-a');
  expect(await move(DEFAULT, undefined, undefined)).toBeUndefined();
});

it('moves no host of another namespace', async () => {
  expect(await move(undefined, undefined, 'platform-a')).toBe('platform-a');
  expect(await move('platform-a', 'platform-a', undefined)).toBeUndefined();
  await expect(move('platform-b', undefined, 'platform-a')).rejects.toMatchObject({ status: 404 });
  await expect(move(undefined, 'platform-a', undefined)).rejects.toMatchObject({ status: 404 });
});
