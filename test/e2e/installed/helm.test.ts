/** Berth installed with helm on real nodes: what people do with it from the first day to the last. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { CHART } from '../../support/chart.ts';
import { waitFor } from '../../support/wait.ts';
import { BOOT, Installed, ROLLOUT, SET_UP_MILLISECONDS, VALUES } from './world.ts';

const PORT = 8080;

describe('helm install', () => {
  const ends: (() => Promise<void>)[] = [];
  let berth: Installed;

  beforeAll(async () => {
    berth = await Installed.start('helm', ends);
  }, SET_UP_MILLISECONDS);

  afterAll(async () => {
    for (const end of ends.toReversed()) await end();
  });

  test('brings up the operator on both nodes and makes each node a host', async () => {
    await berth.helm(['install', 'berth', CHART, '--create-namespace'], VALUES);
    await berth.rolledOut();
    const nodes = (await berth.pods('operator')).map((pod) => pod.spec?.nodeName);
    expect(nodes.toSorted()).toEqual(['node1', 'node2']);
  });

  test('a VM runs, and its page is fetched', async () => {
    await berth.createGuestImage('guest');
    await berth.createVM('steady', 'guest', PORT);
    await berth.vms.waitForCondition('steady', 'Ready', { status: 'True' }, BOOT);
    expect(await berth.page('steady', PORT)).toMatchObject({ boots: '1' });
  });

  test('a VM runs on when its agent is deleted, and the next agent goes on with it', async () => {
    const { nodeName } = (await berth.vms.get('steady')).status ?? {};
    const before = await berth.page('steady', PORT);
    const [agent] = (await berth.pods('agent')).filter((pod) => `${pod.spec?.nodeName}-berth` === nodeName);
    await berth.cluster.kubectl(['delete', 'pod', '-n', 'berth-system', agent?.metadata.name ?? '']);
    expect(await berth.page('steady', PORT)).toMatchObject({ boot_id: before['boot_id'] });
    await waitFor('another agent', async () => (await berth.pods('agent')).length === 2, ROLLOUT);
    await berth.rolledOut();
    expect(await berth.page('steady', PORT)).toMatchObject({ boot_id: before['boot_id'], boots: '1' });
  });
});
