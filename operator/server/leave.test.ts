import { expect, it } from 'vitest';
import type { LastAction, Server } from '../../api/v1alpha1/server.ts';
import { leave } from './leave.ts';
import type { Observed } from './observe.ts';

const NOW = Date.parse('2030-01-01T00:00:00Z');

/** Returns the result of Off on a host with one machine. */
function resultOf(whenOccupied: 'Refuse' | 'Force' | 'Wait' | undefined, by: string) {
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
  return leave({ server, node, machines: 1, now: NOW } as unknown as Observed, action, 'Off').lastAction
    ?.result;
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
