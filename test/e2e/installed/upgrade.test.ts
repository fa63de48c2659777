/** An upgrade from an earlier commit while VMs run: the operator first, then the hosts. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { VM } from '../../../api/v1alpha1/vm.ts';
import { Informer } from '../../../kube/informer.ts';
import { VMS } from '../../../api/v1alpha1/resources.ts';
import { whyNoNodes } from '../../../hack/cluster/nodes/requirements.ts';
import { CHART } from '../../support/chart.ts';
import { isError } from '../../support/loglines.ts';
import { buildEarlier, EARLIER_TAG, type Earlier, whyNoEarlier } from './earlier.ts';
import { BOOT, Installed, SET_UP_MILLISECONDS, VALUES } from '../../worlds/installed.ts';
import { unless } from '../../support/unless.ts';

const TAG = { tag: EARLIER_TAG };
const PORTS = { one: 8080, two: 8081 };
/** Names of VMs that run during the whole upgrade. */
const NAMES = Object.keys(PORTS) as (keyof typeof PORTS)[];
const unfit = whyNoNodes() ?? (await whyNoEarlier());

describe('helm upgrade', unless(unfit), () => {
  /** Phases of these VMs since they ran. */
  const seen: (string | undefined)[] = [];
  /** Errors in the logs of operators and agents of both versions. They are collected before Pods are replaced. */
  const errors: object[] = [];
  const watching = new AbortController();
  let berth: Installed;
  /** Folder with the work tree of the earlier version. */
  let folder: string;
  let earlier: Earlier;
  let before: Record<string, string>[];

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-earlier-'));
    const building = buildEarlier(join(folder, 'earlier'));
    // If the cluster does not start, the set-up fails for that reason.
    building.catch(() => undefined);
    berth = await Installed.start('upgrade');
    await berth.prepareNodes();
    earlier = await building;
    for (const archive of earlier.archives) {
      await berth.importImages(archive);
    }
  }, SET_UP_MILLISECONDS);

  afterAll(async () => {
    watching.abort(new Error('the test is over'));
    await berth?.[Symbol.asyncDispose]();
    await rm(folder, { recursive: true, force: true });
  });

  const images = (operator: object, agent: object): object => ({
    ...VALUES,
    operator: { image: { ...VALUES.operator.image, ...operator } },
    agent: { ...VALUES.agent, image: { ...VALUES.agent.image, ...agent } },
  });

  async function watch(): Promise<void> {
    const informer = new Informer<VM>(berth.cluster.client(), VMS, { logger: pino({ level: 'silent' }) });
    informer.cache.onChange(({ object: { metadata, status } }) => {
      if (metadata.name in PORTS) {
        seen.push(status?.phase);
      }
    });
    informer.start(watching.signal);
    await informer.synced;
  }

  function pages(): Promise<Record<string, string>[]> {
    return Promise.all(NAMES.map((name) => berth.page(name, PORTS[name])));
  }

  /** Checks that the guests are in the same boot, and that no VM had another phase than Running. */
  async function runOn(): Promise<void> {
    const boots = (all: Record<string, string>[]): unknown[] =>
      all.map(({ boot_id, boots: count }) => [boot_id, count]);
    expect(boots(await pages())).toEqual(boots(before));
    expect(seen.length).toBeGreaterThan(0);
    expect(seen.filter((phase) => phase !== 'Running')).toEqual([]);
  }

  async function collectErrors(): Promise<void> {
    errors.push(...(await berth.said()).filter(isError));
  }

  test('the earlier version is installed, and VMs run', async () => {
    await berth.helm(['install', 'berth', earlier.chart, '--create-namespace'], images(TAG, TAG));
    await berth.rolledOut();
    await berth.createGuestImage('guest');
    for (const name of NAMES) {
      await berth.createVM(name, 'guest', PORTS[name]);
    }
    for (const name of NAMES) {
      await berth.vms.waitForCondition(name, 'Ready', { status: 'True' }, BOOT);
    }
    before = await pages();
    expect(before.map(({ boots }) => boots)).toEqual(['1', '1']);
    await watch();
    await collectErrors();
  });

  test('the operator is upgraded: VMs run on, and agents one version behind run new VMs', async () => {
    await berth.helm(['upgrade', 'berth', CHART], images({}, TAG));
    await berth.rolledOut();
    await runOn();
    await berth.createVM('between', 'guest', 8082);
    await berth.vms.waitForCondition('between', 'Ready', { status: 'True' }, BOOT);
    expect(await berth.page('between', 8082)).toMatchObject({ boots: '1' });
    await collectErrors();
  });

  test('the agents are upgraded: VMs run on, also one that was created in between', async () => {
    const { boot_id: boot } = await berth.page('between', 8082);
    await berth.helm(['upgrade', 'berth', CHART], images({}, {}));
    await berth.rolledOut();
    await runOn();
    expect(await berth.page('between', 8082)).toMatchObject({ boot_id: boot, boots: '1' });
  });

  test('neither version has logged an error, and all VMs can be ended', async () => {
    await collectErrors();
    expect(errors).toEqual([]);
    for (const name of [...NAMES, 'between']) {
      await berth.vms.delete(name);
    }
    for (const name of [...NAMES, 'between']) {
      await berth.vms.waitUntilGone(name, BOOT);
    }
  });
});
