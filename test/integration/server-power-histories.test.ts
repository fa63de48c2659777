/** Histories of a server and its host: actions, VMs, faults of the controller, and crashes of the operator, in any order. */
import * as fc from 'fast-check';
import PQueue from 'p-queue';
import { pino } from 'pino';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { VM_UID_LABEL, EMULATOR_UID_LABEL } from '../../api/v1alpha1/names.ts';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { KubeClient } from '../../kube/client.ts';
import { NAMESPACES, NODES, PODS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { PODS_BY_NODE, nodeOfPod } from '../../operator/host/observe.ts';
import { nodeOfServer, SERVERS_BY_NODE } from '../../operator/host/power.ts';
import { addressesOf, SERVERS_BY_ADDRESS } from '../../operator/server/observe.ts';
import { PODS_WITHOUT_HOST, unboundPods } from '../../operator/vm/triggers.ts';
import { sharedCluster } from '../support/cluster.ts';
import { operatorClient } from '../worlds/agenthost.ts';
import { ServerWorld, type Watched } from '../worlds/serverpower.ts';

const HISTORIES = 200;
const LENGTH = 12;
/** Number of histories that run at the same time. Most of their time is waiting for the API server. */
const AT_ONCE = 10;
/** Time after the last fault in which everything must come to rest, in milliseconds of the history. */
const REST_MILLISECONDS = 600_000;
const NAMESPACE = 'platform-server-power-histories';

const action = fc.constantFrom('On' as const, 'Off' as const, 'Reboot' as const);
const step = fc.oneof(
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('request' as const), action }) },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('declare' as const),
      action,
      ago: fc.constantFrom(0, 3_600_000),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({ kind: fc.constantFrom('startVM' as const, 'endVM' as const, 'stopVM' as const) }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant('crash' as const),
      left: fc.integer({ min: 0, max: 6 }),
      isAfter: fc.boolean(),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('answer' as const),
      answer: fc.constantFrom('accepts' as const, 'refuses' as const, 'loses' as const, 'lies' as const),
      delay: fc.constantFrom(0, 3_000, 11_000),
    }),
  },
  fc.record({
    kind: fc.constant('policy' as const),
    whenOccupied: fc.constantFrom('Refuse' as const, 'Force' as const, 'Wait' as const),
  }),
  fc.record({ kind: fc.constant('readsFail' as const), seconds: fc.constantFrom(5, 45, 200) }),
  fc.record({ kind: fc.constant('press' as const), power: fc.constantFrom('On' as const, 'Off' as const) }),
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;
const history = fc.array(fc.record({ step, seconds: fc.constantFrom(0.1, 2, 7, 40, 130) }), {
  minLength: 3,
  maxLength: LENGTH,
  size: 'max',
});

let cluster: Cluster;
let client: KubeClient;
let operator: KubeClient;
let watched: Watched;
const ended = new AbortController();

beforeAll(async () => {
  cluster = await sharedCluster();
  client = cluster.client();
  operator = await operatorClient(cluster);
  await client.create(NAMESPACES, { metadata: { name: NAMESPACE } });
  const base = { logger: pino({ level: 'silent' }) };
  const byNode = { indexes: { [PODS_BY_NODE]: nodeOfPod } };
  watched = {
    servers: new Informer(client, SERVERS, {
      ...base,
      indexes: { [SERVERS_BY_ADDRESS]: addressesOf, [SERVERS_BY_NODE]: nodeOfServer },
    }),
    nodes: new Informer(client, NODES, base),
    pods: new Informer(client, PODS, {
      ...base,
      indexes: { ...byNode.indexes, [PODS_WITHOUT_HOST]: unboundPods },
      labelSelector: VM_UID_LABEL,
    }),
    emulatorPods: new Informer(client, PODS, { ...base, ...byNode, labelSelector: EMULATOR_UID_LABEL }),
  };
  const all = Object.values(watched) as Informer<never>[];
  all.forEach((informer) => informer.start(ended.signal));
  await Promise.all(all.map((informer) => informer.synced));
});

afterAll(async () => {
  ended.abort();
  await client.delete(NAMESPACES, { name: NAMESPACE });
});

async function apply(world: ServerWorld, one: Step): Promise<void> {
  switch (one.kind) {
    case 'request':
      return await world.request(one.action);
    case 'declare':
      return await world.declare(one.action, one.ago);
    case 'crash':
      world.crash = { left: one.left, isAfter: one.isAfter };
      return undefined;
    case 'answer':
      Object.assign(world, { answer: one.answer, delay: one.delay });
      return undefined;
    case 'policy':
      return await world.setPolicy(one.whenOccupied);
    case 'readsFail':
      world.readsFailUntil = world.now + one.seconds * 1000;
      return undefined;
    case 'press':
      return await world.press(one.power);
    default:
      return await world[one.kind]();
  }
}

async function live(index: number, steps: readonly { step: Step; seconds: number }[]) {
  const name = `history-${index}`;
  const address = `2001:db8::${index.toString(16)}`;
  const world = await ServerWorld.create(
    { client, operator, watched },
    { namespace: NAMESPACE, name, address },
  );
  for (const { step: one, seconds } of steps) {
    await apply(world, one);
    await world.run(seconds * 1000);
  }
  Object.assign(world, { answer: 'accepts', crash: undefined });
  await world.run(REST_MILLISECONDS);
  const { status, spec } = await world.server();
  const { spec: node } = await world.node();
  await client.delete(SERVERS, { name });
  await client.delete(NODES, { name });
  return { world, status, spec, isCordoned: node?.unschedulable === true };
}

test('200 histories with crashes: no host goes off with VMs unasked, no action is done twice, and all come to rest', async () => {
  const histories = fc.sample(history, HISTORIES);
  const queue = new PQueue({ concurrency: AT_ONCE });
  const found: unknown[] = [];
  let crashes = 0;
  let commands = 0;
  await Promise.all(
    histories.map((steps, index) =>
      queue.add(async () => {
        const { world, status, isCordoned } = await live(index, steps);
        crashes += world.crashes;
        commands += world.commands.length;
        const { lastAction, request, host, power } = status ?? {};
        const isOpen = request !== undefined || (lastAction && lastAction.completedAt === undefined);
        const isLeft = world.power === 'On' && (host !== undefined || isCordoned);
        const isWrong = power !== world.power && !(power === 'Error' && lastAction?.action === 'Reboot');
        if (world.violations.length > 0 || isOpen === true || isLeft || isWrong) {
          found.push({
            index,
            violations: world.violations,
            isOpen,
            isLeft,
            isWrong,
            status,
            power: world.power,
            steps,
          });
        }
      }),
    ),
  );
  expect(JSON.stringify(found, undefined, 1)).toBe('[]');
  expect(crashes).toBeGreaterThan(HISTORIES / 4);
  expect(commands).toBeGreaterThan(HISTORIES / 2);
}, 300_000);
