import { expect, it } from 'vitest';
import type { LastAction, PowerAction, Server, ServerStatus } from '../../api/v1alpha1/server.ts';
import { decide, outcomeOf } from './actions.ts';

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
