import { expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Event } from '../../kube/core.ts';
import type { UserCluster } from '../cluster.ts';
import { diagnose } from '../../actions/diagnosis.ts';
import { ownEvents } from '../../actions/events.ts';
import { eventsNamed, formatPage } from './why.ts';

const CREATED = '2026-11-23T12:00:30Z';
const VM_OBJECT = { metadata: { name: 'mac', uid: 'new', creationTimestamp: CREATED } } as VM;

function event(note: string, second: string, regarding: object = {}): Event {
  return {
    metadata: { name: note },
    note,
    eventTime: `2026-11-23T12:00:${second}Z`,
    regarding: { kind: 'VM', name: 'mac', uid: 'new', ...regarding },
  } as Event;
}

/** Returns the Events with the name of the VM, of a cluster with these Events. */
async function named(...items: Event[]): Promise<Event[]> {
  const list = async (_: unknown, { fieldSelector = '' }: { fieldSelector?: string }) => {
    const [, name] = fieldSelector.split('regarding.name=');
    return await Promise.resolve({ items: items.filter(({ regarding }) => regarding.name === name) });
  };
  return await eventsNamed(
    { client: { list } } as unknown as UserCluster,
    'mac',
    new AbortController().signal,
  );
}

const notes = (events: readonly Event[]) => events.map(({ note }) => note);

it('has the Events of the second in which the VM was created, and not those of an earlier VM', async () => {
  const pod = { kind: 'Pod', uid: 'pod' };
  const events = await named(
    event('earlier VM', '30.200000', { uid: 'old' }),
    event('VM', '30.412000'),
    event('VM on a host whose clock is behind', '28.000000'),
    event('VM without its UID', '30.500000', { uid: undefined }),
    event('earlier Pod', '29.999000', { kind: 'Pod', uid: 'old-pod' }),
    event('Pod', '30.001000', pod),
    event('other', '31.000000', { name: 'other' }),
    event('image', '31.000000', { kind: 'Image' }),
  );
  expect(notes(ownEvents(events, VM_OBJECT))).toEqual([
    'VM without its UID',
    'VM',
    'Pod',
    'VM on a host whose clock is behind',
  ]);
});

it('finds the Events of the VM, no matter how many Events of others the namespace has', async () => {
  const others = Array.from({ length: 6_000 }, (_, index) => event('other', '31', { name: `a${index}` }));
  expect(notes(await named(...others, event('VM', '31')))).toEqual(['VM']);
});

it('begins with the newest, whether or not times have fractions', async () => {
  const events = await named(
    event('first', '30'),
    event('third', '31'),
    event('second', '30.412000'),
    event('fourth', '31.001000'),
    { ...event('fifth', '29.000000'), series: { count: 2, lastObservedTime: '2026-11-23T12:00:31.500000Z' } },
  );
  expect(notes(events)).toEqual(['fifth', 'fourth', 'third', 'second', 'first']);
});

it('says why a machine booted, although its image has memory', () => {
  const condition = (type: string, status: string) => ({ type, status, reason: 'R', message: 'as told' });
  const headOf = (warmStart: string): string => {
    const conditions = [condition('Ready', 'True'), condition('WarmStart', warmStart)];
    const vm = { ...VM_OBJECT, spec: {}, status: { phase: 'Running', conditions } } as unknown as VM;
    return formatPage(diagnose({ vm }), []).split('\n')[0] ?? '';
  };
  expect(headOf('True')).toBe('VM mac runs. Nothing is wrong');
  expect(headOf('False')).toBe(
    'VM mac runs. Nothing is wrong. It did not start from the saved memory: as told',
  );
});

it('names the spec of a VM whose VMConfig does not exist as the area, and nothing as passed', () => {
  const conditions = [{ type: 'Scheduled', status: 'False', reason: 'ConfigNotFound', message: 'No large' }];
  const vm = { ...VM_OBJECT, spec: {}, status: { phase: 'Pending', conditions } } as unknown as VM;
  const { area, todo, checks } = diagnose({ vm });
  expect([area, ...todo]).toEqual(['spec', expect.stringMatching(/^Create the VMConfig, or/)]);
  expect(checks.map(({ state }) => state)).toEqual(['problem', ...Array(7).fill('not yet')]);
});

it.each([
  [
    'has run',
    { firstRunningTime: CREATED },
    ['spec: ok', 'scheduler: ok', 'quota: ok', 'image: ok', 'network: not checked', 'host: not checked'],
  ],
  [
    'has not run',
    {},
    ['spec', 'scheduler', 'quota', 'image', 'network', 'host'].map((area) => `${area}: not checked`),
  ],
])(
  'shows of a failed VM that %s the areas that it passed, and that nobody checks the others',
  (_, ran, states) => {
    const failure = { reason: 'DeadlineExceeded', message: '5 s', time: CREATED };
    const { checks } = diagnose({
      vm: { ...VM_OBJECT, spec: {}, status: { phase: 'Failed', failure, ...ran } },
    });
    expect(checks.map(({ area, state }) => `${area}: ${state}`)).toEqual([
      ...states,
      'machine: problem',
      'guest: not checked',
    ]);
  },
);
