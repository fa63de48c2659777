import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import { pino } from 'pino';
import { CORDONED_FOR_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Server, ServerStatus } from '../../api/v1alpha1/server.ts';
import { timestamp } from '../../base/time.ts';
import { Consistency } from '../../kube/consistency.ts';
import { type Node, NODES } from '../../kube/core.ts';
import { ControllerSecrets, type ServerControllerOptions, ServerReconciler } from './controller.ts';

/** Interval of readings of the power, in which the operator asks for the credentials. */
const POLL_MILLISECONDS = 30_000;
const SERVER = {
  spec: { addresses: ['192.0.2.1'], controller: { ipmi: { address: '192.0.2.2' }, secretName: 'bmc' } },
};

/** Present time in milliseconds for the cache, which reads it from `performance`, and takes 0 for no time. */
let now = 1;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout'] });
  vi.spyOn(performance, 'now').mockImplementation(() => now);
});

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

describe('a change of a host is one write of its Node:', () => {
  const NOW = 1_900_000_000_000;
  const at = (milliseconds: number): string => timestamp(NOW + milliseconds);
  const hostTaint = { key: 'berth.dev/host', effect: 'NoSchedule' } as const;
  const cordon = { key: 'node.kubernetes.io/unschedulable', effect: 'NoSchedule' } as const;
  const silence = { key: 'node.kubernetes.io/unreachable', effect: 'NoExecute' } as const;

  /** Reconciles a Server until it has nothing to do at once, and returns the writes of its Node. */
  async function nodeWrites(status: ServerStatus, spec: Node['spec'], annotations = {}): Promise<unknown[]> {
    const conditions = [{ type: 'Ready', status: 'True' as const, lastTransitionTime: at(-1_000) }];
    const node: Node = {
      apiVersion: 'v1',
      kind: 'Node',
      metadata: { name: 'rack', uid: 'n', resourceVersion: '1', annotations },
      spec: spec ?? {},
      status: { conditions, nodeInfo: { bootID: 'new' } },
    };
    const state = {
      server: {
        ...SERVER,
        spec: { ...SERVER.spec, nodeName: 'rack', controller: { webhook: {} } },
        metadata: { name: 'rack', uid: 's', generation: 1, creationTimestamp: at(-9_000_000) },
        status,
      } as unknown as Server,
    };
    const writes: unknown[] = [];
    const mergePatch = async (type: unknown, _ref: unknown, body: Partial<Server>) => {
      if (type === NODES) {
        const { metadata, ...change } = body as Node;
        const { resourceVersion: _version, uid: _uid, ...changed } = metadata;
        writes.push({ ...changed, ...change });
        return await Promise.resolve(node);
      }
      state.server = { ...state.server, status: { ...state.server.status, ...body.status } };
      return await Promise.resolve(state.server);
    };
    const noPods = { cache: { byIndex: () => [] } };
    const reconciler = new ServerReconciler({
      client: { mergePatch, get: async () => await Promise.resolve(node), list: async () => ({ items: [] }) },
      servers: { cache: { get: () => state.server, byIndex: () => [], resourceVersion: '1' } },
      nodes: { cache: { get: () => node, list: () => [node] } },
      pods: noPods,
      emulatorPods: noPods,
      taskPods: noPods,
      systemNamespace: 'berth-system',
      createDriver: () => ({ canReboot: false, read: async () => 'On', send: async () => undefined }),
      recorder: { event: () => undefined },
      consistency: new Consistency(),
      metrics: {
        measure: async (_server: unknown, _verb: unknown, work: () => Promise<unknown>) => await work(),
      },
      clock: () => NOW,
    } as unknown as ServerControllerOptions);
    await reconciler.reconcile('rack', { logger: pino({ level: 'silent' }) });
    return writes;
  }

  it('its cordon comes with the taint', async () => {
    const lastAction = {
      id: 'a',
      action: 'Off',
      by: 'x',
      requestedAt: at(0),
      startedAt: at(0),
      result: 'Running',
      message: '',
    };
    const status = { lastAction } as ServerStatus;
    await expect(nodeWrites(status, { taints: [hostTaint] })).resolves.toEqual([
      {
        annotations: { [CORDONED_FOR_ANNOTATION]: 'rack' },
        spec: { unschedulable: true, taints: [hostTaint, cordon] },
      },
    ]);
  });

  it('its return takes the cordon and all taints of its silence', async () => {
    const status = { host: { offAt: at(-60_000), onAt: at(-10_000), bootID: 'old' } } as ServerStatus;
    const spec = { unschedulable: true, taints: [hostTaint, cordon, silence] };
    const writes = await nodeWrites(status, spec, { [CORDONED_FOR_ANNOTATION]: 'rack' });
    expect(writes).toEqual([
      {
        annotations: { [CORDONED_FOR_ANNOTATION]: null },
        spec: { unschedulable: null, taints: [hostTaint] },
      },
    ]);
  });
});

it('reads a changed Secret within five minutes, also if the controller is asked all the time', async () => {
  const encode = (text: string): string => Buffer.from(text).toString('base64');
  let password = 'first';
  const client = {
    get: async () => ({
      type: 'kubernetes.io/basic-auth',
      data: { username: encode('berth'), password: encode(password) },
    }),
  } as unknown as KubeClient;
  const secrets = new ControllerSecrets(client, 'berth-system');
  await expect(secrets.of(SERVER)).resolves.toEqual({ username: 'berth', password: 'first' });
  password = 'second';
  const seen: (string | undefined)[] = [];
  for (let waited = 0; waited <= 300_000; waited += POLL_MILLISECONDS) {
    now += POLL_MILLISECONDS;
    vi.advanceTimersByTime(POLL_MILLISECONDS);
    seen.push((await secrets.of(SERVER))?.password);
  }
  expect(seen[0]).toBe('first');
  expect(seen.at(-1)).toBe('second');
});

it('reads the Secret again at once after the controller has refused the password', async () => {
  let reads = 0;
  const client = {
    get: async () => {
      reads += 1;
      return { type: 'kubernetes.io/basic-auth', data: { username: '', password: '' } };
    },
  } as unknown as KubeClient;
  const secrets = new ControllerSecrets(client, 'berth-system');
  await secrets.of(SERVER);
  await secrets.of(SERVER);
  expect(reads).toBe(1);
  secrets.forget(SERVER);
  await secrets.of(SERVER);
  expect(reads).toBe(2);
});
