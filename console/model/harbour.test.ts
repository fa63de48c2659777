import { expect, it } from 'vitest';
import type { NodeItem } from '../../api/http/node.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import type { Node } from '../../kube/core.ts';
import { columnsIn, hostsOfItems, hostsOfNodes, type Occupant, pierList, totalsOf } from './harbour.ts';

const ALL = { knowsOthers: false };

function node(name: string, { ready = 'True', slots = '4', ...more }: Record<string, unknown> = {}): Node {
  const { taints = [], unschedulable, annotations } = more;
  return {
    metadata: { name, annotations },
    spec: { taints, unschedulable },
    status: {
      allocatable: { 'berth.dev/slot': slots },
      conditions: [{ type: 'Ready', status: ready, reason: 'x', message: 'x' }],
    },
  } as unknown as Node;
}

function machines(host: string, count: number): Occupant[] {
  return Array.from({ length: count }, (_, index) => ({
    kind: 'VM',
    name: `vm-${index}`,
    namespace: 'team',
    host,
    phase: 'Running',
  }));
}

function stateOf(one: Node, occupants: readonly Occupant[] = [], servers: readonly Server[] = []) {
  return pierList(hostsOfNodes([one], servers, 'default'), occupants, ALL)[0]?.state;
}

const server = (power: string) => ({ spec: { nodeName: 'h' }, status: { power } }) as Server;
const switchedOff = { annotations: { 'berth.dev/cordoned-for': 'rack' } };
const silent = { ready: 'Unknown' };

it.each([
  ['free', stateOf(node('h'), machines('h', 3))],
  ['full', stateOf(node('h'), machines('h', 4))],
  ['draining', stateOf(node('h', { unschedulable: true }), machines('h', 1))],
  ['cordoned', stateOf(node('h', { unschedulable: true }))],
  ['draining', stateOf(node('h', switchedOff))],
  ['off', stateOf(node('h', { ...switchedOff, ...silent }))],
  ['off', stateOf(node('h', silent), [], [server('Off')])],
  ['starting', stateOf(node('h', silent), [], [server('On')])],
  ['silent', stateOf(node('h', silent))],
  ['closed', stateOf(node('h', { taints: [{ key: 'mine', effect: 'NoSchedule' }] }))],
  [
    'fenced',
    stateOf(node('h', { taints: [{ key: 'node.kubernetes.io/out-of-service', effect: 'NoExecute' }] })),
  ],
])('a host is %s', (expected, state) => expect(state).toBe(expected));

it('draws the machines of the caller first, then those of others, then free berths', () => {
  const item = { name: 'h', slots: 4, slotsFree: 1, phase: 'READY', tags: [] } as unknown as NodeItem;
  const [pier] = pierList(hostsOfItems([item]), machines('h', 1), { knowsOthers: true });
  expect(pier?.berths).toEqual([expect.objectContaining({ name: 'vm-0' }), 'other', 'other', 'free']);
});

it('bounds the picture of a host with many slots, and counts all of them', () => {
  const piers = pierList(
    hostsOfNodes([node('big', { slots: '100' }), node('off', silent)], [], 'default'),
    machines('big', 20),
    ALL,
  );
  expect(piers[0]).toMatchObject({ berths: { length: 16 }, hidden: 84, used: 20 });
  expect(totalsOf(piers)).toEqual({
    hosts: 2,
    slots: 104,
    used: 20,
    free: 80,
    states: { free: 1, silent: 1 },
  });
});

it('draws all machines of a host whose slots were reduced', () => {
  const [pier] = pierList(hostsOfNodes([node('h', { slots: '2' })], [], 'default'), machines('h', 4), ALL);
  expect([pier?.berths.length, pier?.state]).toEqual([4, 'full']);
});

it('has at least one column', () => expect([columnsIn(0), columnsIn(400)]).toEqual([1, 2]));
