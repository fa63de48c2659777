import { expect, it } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import type { Event } from '../../kube/core.ts';
import type { Resource } from '../../kube/objects.ts';
import { collect } from './collect.ts';
import { Reader } from './reader.ts';

function event(namespace: string, name: string, kind = 'Pod'): Partial<Event> {
  return { metadata: { name, namespace }, regarding: { kind } };
}

const EVENTS = [
  ...Array.from({ length: 2_500 }, (_, index) => event('apps', `other${index}`)),
  event('default', 'other'),
  event('default', 'of-a-host', 'Node'),
  event('berth-system', 'of-the-operator'),
  event('platform-ci', 'of-a-vm', 'VM'),
  event('ci-other-prefix', 'of-a-pod'),
];

it('reads the Events of Berth, even after many Events of other programs, which it leaves out', async () => {
  const { signal } = new AbortController();
  const items: Readonly<Record<string, object[]>> = {
    vms: [{ metadata: { namespace: 'ci-other-prefix' } }],
    events: EVENTS,
  };
  const pages = ({ plural }: Resource<Event>) => [{ items: items[plural] ?? [] }];
  const files = await collect(new Reader({ pages } as unknown as KubeClient, signal), undefined, signal);
  const file = files.find(({ name }) => name === 'berth-support/objects/events.json');
  const found = JSON.parse(file?.content.toString() ?? '') as Event[];
  expect(found.map(({ metadata }) => metadata.name)).toEqual([
    'of-a-host',
    'of-the-operator',
    'of-a-vm',
    'of-a-pod',
  ]);
});
