import { expect, it } from 'vitest';
import type { LastAction, PowerAction, Server, ServerStatus } from '../../api/v1alpha1/server.ts';
import { decide, Occupants, outcomeOf } from './actions.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Authorizer } from '../../kube/serving/authorization.ts';

const NOW = Date.parse('2026-03-01T09:00:00Z');

function request(action: PowerAction, id = 'requested') {
  return { id, action, requestedAt: '2026-03-01T08:59:00Z', by: 'ann' };
}

function lastAction(action: PowerAction, more: Partial<LastAction> = {}): LastAction {
  return {
    ...request(action, 'last'),
    result: 'Running',
    message: '',
    startedAt: '2026-03-01T08:59:00Z',
    ...more,
  };
}

const succeeded = (action: PowerAction, completedAt: string, by = 'ann') =>
  lastAction(action, { result: 'Succeeded', completedAt, by });

it.each([
  ['begins if nothing is known', {}, 'On', 'begin'],
  ['joins the same action that is requested', { request: request('On') }, 'On', { join: 'requested' }],
  ['joins the same action that runs', { lastAction: lastAction('Off') }, 'Off', { join: 'last' }],
  [
    'joins the same action that waits',
    { lastAction: lastAction('Off', { result: 'Waiting' }) },
    'Off',
    { join: 'last' },
  ],
  ['refuses while another action is requested', { request: request('Off') }, 'On', undefined],
  ['refuses while another action runs', { lastAction: lastAction('Off') }, 'On', undefined],
  [
    'counts the requested action if another one runs',
    { request: request('Off'), lastAction: lastAction('On') },
    'Off',
    { join: 'requested' },
  ],
  [
    'does nothing for the same action 29 s later',
    { lastAction: succeeded('On', '2026-03-01T08:59:31Z') },
    'On',
    'done',
  ],
  ['begins 30 s later', { lastAction: succeeded('On', '2026-03-01T08:59:30Z') }, 'On', 'begin'],
  [
    'begins for another caller',
    { lastAction: succeeded('On', '2026-03-01T08:59:59Z', 'bob') },
    'On',
    'begin',
  ],
  ['begins for another action', { lastAction: succeeded('On', '2026-03-01T08:59:59Z') }, 'Reboot', 'begin'],
  [
    'begins after a failure',
    { lastAction: lastAction('On', { result: 'Failed', completedAt: '2026-03-01T08:59:59Z' }) },
    'On',
    'begin',
  ],
  [
    'begins if the server has gone off since',
    { power: 'Off', lastAction: succeeded('On', '2026-03-01T08:59:59Z') },
    'On',
    'begin',
  ],
  [
    'begins if the server has gone on since',
    { power: 'On', lastAction: succeeded('Off', '2026-03-01T08:59:59Z') },
    'Off',
    'begin',
  ],
] as const)('%s', (_what, status: ServerStatus, action, decision) => {
  const decideNow = () => decide(status, { action, by: 'ann' }, NOW);
  if (decision === undefined) {
    expect(decideNow).toThrow(expect.objectContaining({ status: 409 }));
  } else {
    expect(decideNow()).toEqual(decision);
  }
});

function outcome(status: ServerStatus | undefined): unknown {
  const server = status && ({ metadata: { name: 'a' }, spec: {}, status } as unknown as Server);
  try {
    return outcomeOf(server, 'last');
  } catch (error) {
    return (error as { status: number }).status;
  }
}

it.each([
  ['requested', { request: request('On', 'last') }, undefined],
  ['running', { lastAction: lastAction('On') }, undefined],
  ['accepted', { lastAction: lastAction('On', { acceptedAt: '2026-03-01T09:00:00Z' }) }, { accepted: true }],
  ['waiting', { lastAction: lastAction('Off', { result: 'Waiting' }) }, { accepted: true }],
  ['unnecessary', { lastAction: succeeded('On', '2026-03-01T09:00:00Z') }, { accepted: true }],
  [
    'refused',
    { lastAction: lastAction('Off', { result: 'Refused', message: '2 machines run' }) },
    { refused: 'Off was refused: 2 machines run' },
  ],
  [
    'accepted and failed',
    { lastAction: lastAction('Off', { result: 'Failed', acceptedAt: '2026-03-01T09:00:00Z' }) },
    502,
  ],
  ['replaced', { lastAction: { ...lastAction('On'), id: 'other' } }, 502],
  ['of a deleted server', undefined, 404],
] as const)('an action that is %s', (_what, status: ServerStatus | undefined, expected) => {
  expect(outcome(status)).toEqual(expected);
});

interface PodFacts {
  readonly name: string;
  readonly namespace?: string;
  readonly label?: string;
  readonly phase?: string;
  readonly waiting?: string;
}

function pod({
  name,
  namespace = 'platform-a',
  label = 'vm-uid',
  phase = 'Running',
  waiting,
}: PodFacts): object {
  const state = waiting === undefined ? {} : { waiting: { reason: waiting } };
  return {
    metadata: { name, namespace, labels: { [`berth.dev/${label}`]: 'x' } },
    status: { phase, containerStatuses: [{ name: 'machine', state }] },
  };
}

/** The answer to a user who may list VMs in these namespaces. */
async function describe(pods: readonly PodFacts[], namespaces: readonly string[]): Promise<string> {
  const asked: unknown[] = [];
  const client = {
    list: async (_type: unknown, options: unknown) => {
      asked.push(options);
      return { items: pods.map(pod) };
    },
  };
  const authorizer = {
    authorize: async (
      _user: unknown,
      { resourceAttributes }: { resourceAttributes: { namespace: string; resource: string; verb: string } },
    ) =>
      resourceAttributes.verb === 'list' &&
      resourceAttributes.resource === 'vms' &&
      namespaces.includes(resourceAttributes.namespace),
  };
  const occupants = new Occupants(client as unknown as KubeClient, authorizer as unknown as Authorizer);
  const text = await occupants.describe({ name: 'ann', user: { username: 'ann' } }, 'host-1');
  expect(asked).toEqual([{ fieldSelector: 'spec.nodeName=host-1' }]);
  return text;
}

it.each([
  ['nothing for a caller without rights', [{ name: 'a' }], [], ''],
  [
    'the VMs in the order of their names',
    [{ name: 'b' }, { name: 'a' }],
    ['platform-a'],
    ': platform-a/a, platform-a/b',
  ],
  [
    'the number of VMs that the caller may not list, and of emulators',
    [{ name: 'a' }, { name: 'x', namespace: 'platform-b' }, { name: 'e.emulator', label: 'emulator-uid' }],
    ['platform-a'],
    ': platform-a/a and 2 more',
  ],
  [
    'no VM that has ended, is stopped or is suspended, and no other Pod',
    [
      { name: 'a' },
      { name: 'ended', phase: 'Failed' },
      { name: 'stopped', waiting: 'Stopped' },
      { name: 'suspended', waiting: 'Suspended' },
      { name: 'other', label: 'image-uid' },
    ],
    ['platform-a'],
    ': platform-a/a',
  ],
  [
    'ten VMs at most',
    Array.from({ length: 13 }, (_, index) => ({ name: `vm-${String(index).padStart(2, '0')}` })),
    ['platform-a'],
    `: ${Array.from({ length: 10 }, (_, index) => `platform-a/vm-${String(index).padStart(2, '0')}`).join(', ')} and 3 more`,
  ],
] as const)('names %s', async (_what, pods, namespaces, text) => {
  expect(await describe(pods, namespaces)).toBe(text);
});

it('names nothing to a user with a password, and asks nobody', async () => {
  const occupants = new Occupants({} as KubeClient, {} as Authorizer);
  expect(await occupants.describe({ name: 'berth-server-users/ann' }, 'host-1')).toBe('');
});
