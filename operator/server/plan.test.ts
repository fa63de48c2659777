import { describe, expect, it } from 'vitest';
import type { LastAction, PowerAction, Server, ServerHost, ServerSpec } from '../../api/v1alpha1/server.ts';
import { timestamp } from '../../base/time.ts';
import type { Node } from '../../kube/core.ts';
import {
  BY_SPEC,
  CONFIRM_MILLISECONDS,
  leave,
  planServer,
  REBOOT_MILLISECONDS,
  REPEAT_MILLISECONDS,
} from './plan.ts';
import type { ObservedServer } from './observe.ts';
import { serverStatus } from './status.ts';

const NOW = Date.parse('2030-01-01T12:00:00Z');
const at = (milliseconds: number) => timestamp(NOW + milliseconds);
const CORDONED = { metadata: { name: 'host' }, spec: { unschedulable: true } } as Node;

function server(spec: Partial<ServerSpec>, status: Server['status']): Server {
  const controller = { webhook: { onURL: '', offURL: '', statusURL: '', pattern: '' } };
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Server',
    metadata: { name: 'a', generation: 1, creationTimestamp: at(-3_600_000) },
    spec: { addresses: ['192.0.2.1'], controller, ...spec },
    ...(status && { status }),
  };
}

function look(
  o: { spec?: Partial<ServerSpec>; status?: Server['status'] } & Partial<ObservedServer>,
): ObservedServer {
  const { spec = {}, status, ...rest } = o;
  return {
    server: server(spec, status),
    problem: undefined,
    reading: { at: NOW, power: 'On' },
    canReboot: false,
    node: CORDONED,
    machines: 0,
    carried: 0,
    now: NOW,
    ...rest,
  };
}

function running(action: PowerAction, more: Partial<LastAction> = {}): LastAction {
  const startedAt = at(-10_000);
  return {
    id: '1',
    action,
    requestedAt: startedAt,
    by: 'x',
    result: 'Running',
    message: '',
    startedAt,
    ...more,
  };
}

function called(action: PowerAction, ago: number, more: Partial<NonNullable<LastAction['call']>> = {}) {
  return { call: { action, begunAt: at(-ago), attempts: 1, ...more } };
}

const SETTLED: ServerHost = { cordonedAt: at(-10_000) };
const ON_HOST = { nodeName: 'host' };

describe('spec.powerAction', () => {
  const declared = (requestedAt: string, lastRequestedAt?: string) =>
    planServer(
      look({
        spec: { powerAction: { action: 'Off', requestedAt } },
        status: lastRequestedAt === undefined ? {} : { lastRequestedAt },
      }),
    ).lastAction?.by;

  it('is begun if it is later than every action before, not in the future, and not older than the Server', () => {
    expect(declared(at(-5_000))).toBe(BY_SPEC);
    expect(declared(at(-5_000), at(-6_000))).toBe(BY_SPEC);
    expect(declared(at(-5_000), at(-5_000))).toBeUndefined();
    expect(declared(at(-5_000), at(-4_000))).toBeUndefined();
    expect(declared(at(3_600_000))).toBeUndefined();
    // It comes from a backup of an earlier Server.
    expect(declared(at(-7_200_000))).toBeUndefined();
  });
});

describe('Off of a host', () => {
  const plan = (whenOccupied: 'Refuse' | 'Force' | 'Wait', machines: number) =>
    planServer(
      look({
        spec: { ...ON_HOST, policy: { whenOccupied } },
        status: { lastAction: running('Off'), host: SETTLED },
        machines,
      }),
    );

  it('with machines is refused, waited for or forced, as the policy says', () => {
    expect(plan('Refuse', 2)).toMatchObject({
      lastAction: { result: 'Refused', message: '2 machines run on host host' },
      host: undefined,
    });
    expect(plan('Refuse', 2).effect).toBeUndefined();
    expect(plan('Wait', 2)).toMatchObject({ lastAction: { result: 'Waiting' }, host: SETTLED });
    expect(plan('Wait', 2).effect).toBeUndefined();
    expect(plan('Force', 2).effect).toEqual({ kind: 'send', command: 'Off' });
    expect(plan('Wait', 0).effect).toEqual({ kind: 'send', command: 'Off' });
  });

  it('begins with the cordon, and waits for schedulers that have not seen it', () => {
    const status = { lastAction: running('Off') };
    const node = { metadata: { name: 'host' } } as Node;
    expect(planServer(look({ spec: ON_HOST, status, node }))).toMatchObject({
      effect: { kind: 'cordon' },
      host: { cordonedAt: at(0) },
    });
    const fresh = look({ spec: ON_HOST, status: { ...status, host: { cordonedAt: at(-1_000) } } });
    expect(planServer(fresh)).toMatchObject({ wakeAt: NOW + 2_000 });
    expect(planServer(fresh).effect).toBeUndefined();
  });

  it('is stored with the time when the host goes off, before the command is sent', () => {
    expect(plan('Refuse', 0)).toMatchObject({
      effect: { kind: 'send', command: 'Off' },
      lastAction: { call: { action: 'Off', begunAt: at(0), attempts: 1 } },
      host: { offAt: at(0) },
    });
  });
});

describe('a command without an answer', () => {
  const plan = (ago: number, o: Partial<ObservedServer> = {}, attempts = 1, action: PowerAction = 'Off') =>
    planServer(look({ status: { lastAction: running('Off', called(action, ago, { attempts })) }, ...o }));

  it('is sent a second time only after a reading that shows no effect, and never a third time', () => {
    expect(plan(REPEAT_MILLISECONDS - 1_000).effect).toBeUndefined();
    expect(plan(REPEAT_MILLISECONDS).effect).toEqual({ kind: 'send', command: 'Off' });
    const unread = { reading: { at: NOW - REPEAT_MILLISECONDS, power: 'On' as const } };
    expect(plan(REPEAT_MILLISECONDS, unread).effect).toBeUndefined();
    expect(plan(REPEAT_MILLISECONDS, {}, 2)).toMatchObject({ lastAction: { result: 'Failed' } });
  });

  it('that reboots is never sent a second time', () => {
    expect(plan(REPEAT_MILLISECONDS, {}, 1, 'Reboot')).toMatchObject({ lastAction: { result: 'Failed' } });
  });

  it('ends as unknown if the power cannot be read', () => {
    const unread = { reading: undefined };
    expect(plan(CONFIRM_MILLISECONDS - 1_000, unread).lastAction?.result).toBe('Running');
    expect(plan(CONFIRM_MILLISECONDS, unread).lastAction).toMatchObject({
      result: 'Failed',
      message:
        'Whether the controller of Server a got the command Off is not known, and its effect was not seen',
    });
  });
});

describe('a reboot', () => {
  const reboot = (ago: number, o: Partial<ObservedServer>, action: PowerAction) =>
    look({
      status: {
        lastAction: running('Reboot', {
          ...called(action, ago, { acceptedAt: at(-ago) }),
          acceptedAt: at(-ago),
        }),
      },
      ...o,
    });

  it('is off, confirmed, and on, and Rebooting until On is confirmed', () => {
    const off = reboot(5_000, { reading: { at: NOW, power: 'Off' } }, 'Off');
    expect(planServer(off).effect).toEqual({ kind: 'send', command: 'On' });
    const waiting = reboot(5_000, { reading: { at: NOW, power: 'Off' } }, 'On');
    expect(serverStatus(waiting, planServer(waiting)).power).toBe('Rebooting');
    const on = reboot(5_000, {}, 'On');
    expect(serverStatus(on, planServer(on))).toMatchObject({
      power: 'On',
      lastAction: { result: 'Succeeded' },
    });
  });

  it('that ends off is Error, with words', () => {
    const stranded = reboot(CONFIRM_MILLISECONDS, { reading: { at: NOW, power: 'Off' } }, 'On');
    expect(serverStatus(stranded, planServer(stranded))).toMatchObject({
      power: 'Error',
      lastAction: {
        result: 'Failed',
        message: 'The controller of Server a accepted On, but the server is still off after 120 s',
      },
    });
  });

  it('by one command is done only when the power can show the state after it', () => {
    const early = reboot(REBOOT_MILLISECONDS - 1_000, { canReboot: true }, 'Reboot');
    expect(planServer(early).lastAction?.result).toBe('Running');
    const late = reboot(REBOOT_MILLISECONDS, { canReboot: true }, 'Reboot');
    expect(planServer(late).lastAction?.result).toBe('Succeeded');
  });

  it('of a server that is off switches it on', () => {
    const observed = look({ status: { lastAction: running('Reboot') }, reading: { at: NOW, power: 'Off' } });
    expect(planServer(observed).effect).toEqual({ kind: 'send', command: 'On' });
  });
});

describe('a host that Berth switched off', () => {
  const back = (ready: string | undefined, onAt: string, bootID = 'old') => {
    const conditions = [
      { type: 'Ready', status: 'True' as const, ...(ready !== undefined && { lastTransitionTime: ready }) },
    ];
    const node = { metadata: { name: 'host' }, status: { conditions, nodeInfo: { bootID } } } as Node;
    const host = { cordonedAt: at(-600_000), offAt: at(-500_000), onAt, bootID: 'old' };
    return planServer(look({ spec: ON_HOST, status: { host }, node })).host === undefined;
  };

  it('is back when its Node has another boot, or a report from after the time when it was on again', () => {
    expect(back(at(-700_000), at(-5_000))).toBe(false);
    expect(back(at(-700_000), at(-5_000), 'new')).toBe(true);
    expect(back(at(-1_000), at(-5_000))).toBe(true);
    expect(back(at(-700_000), at(-60_000))).toBe(true);
  });
});

describe('a host with machines', () => {
  const NOW = Date.parse('2030-01-01T00:00:00Z');

  /** Returns the result of Off on a host with one machine, of which this many run. */
  function resultOf(whenOccupied: 'Refuse' | 'Force' | 'Wait' | undefined, by: string, machines = 1) {
    const action = {
      id: 'a',
      action: 'Off',
      by,
      result: 'Running',
      startedAt: '2030-01-01T00:00:00Z',
    } as LastAction;
    const server = {
      metadata: { name: 'rack' },
      spec: { nodeName: 'rack', policy: { whenOccupied } },
      status: { lastAction: action },
    } as unknown as Server;
    const node = { metadata: { name: 'rack' }, spec: { unschedulable: true } };
    return leave({ server, node, machines, carried: 1, now: NOW } as unknown as ObservedServer, action, 'Off')
      .lastAction?.result;
  }

  it('the policy of a Server decides about a host with machines, but power by demand never ends a machine', () => {
    expect(resultOf(undefined, 'admin')).toBe('Refused');
    expect(resultOf('Force', 'admin')).toBe('Running');
    expect(resultOf('Wait', 'admin')).toBe('Waiting');
    for (const whenOccupied of [undefined, 'Refuse', 'Force', 'Wait'] as const) {
      expect(resultOf(whenOccupied, 'power by demand')).toBe('Refused');
      expect(resultOf(whenOccupied, 'power by demand, after 2 failed starts')).toBe('Refused');
    }
  });

  it('a stopped VM forbids the end of its host to power by demand alone', () => {
    expect(resultOf(undefined, 'admin', 0)).toBe('Running');
    expect(resultOf(undefined, 'power by demand', 0)).toBe('Refused');
  });
});
