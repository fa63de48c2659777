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
  event('default', 'of-a-cached-image', 'ImageCacheEntry'),
  event('berth-system', 'of-the-operator'),
  event('platform-ci', 'of-a-vm', 'VM'),
  event('ci-other-prefix', 'of-a-pod'),
];

/** Paths of all texts that were read. */
const read: string[] = [];

/** Returns the files of a bundle of all namespaces. `items` contains the objects of the cluster, by the plural of their kind. */
async function bundleOf(items: Readonly<Record<string, object[]>>): Promise<Map<string, string>> {
  const { signal } = new AbortController();
  const pages = ({ plural }: Resource<Event>, { namespace }: { namespace?: string }) => [
    {
      items: (items[plural] ?? []).filter(
        (item) => namespace === undefined || namespace === (item as Partial<Event>).metadata?.namespace,
      ),
    },
  ];
  const raw = async (_: string, path: string, { onData }: { onData: (data: Buffer) => void }) => {
    read.push(path);
    onData(Buffer.from(`text of ${path}`));
    return await Promise.resolve({ status: 200 });
  };
  const files = await collect(new Reader({ pages, raw } as unknown as KubeClient, signal), undefined, signal);
  return new Map(files.map(({ name, content }) => [name.replace('berth-support/', ''), content.toString()]));
}

it('reads the Events of Berth, even after many Events of other programs, which it leaves out', async () => {
  const vms = [{ metadata: { namespace: 'ci-other-prefix' } }];
  const files = await bundleOf({ vms, events: EVENTS });
  const found = JSON.parse(files.get('objects/events.json') ?? '') as Event[];
  expect(found.map(({ metadata }) => metadata.name)).toEqual([
    'of-a-host',
    'of-a-cached-image',
    'of-the-operator',
    'of-a-vm',
    'of-a-pod',
  ]);
});

it('reads the logs of the operator in the namespace of its installation', async () => {
  const metadata = { name: 'berth-operator', namespace: 'machinery' };
  const pods = [{ metadata, spec: { containers: [{ name: 'operator' }] } }];
  const files = await bundleOf({ deployments: [{ metadata }], pods });
  expect(files.get('logs/0-berth-operator-operator.log')).toContain(
    'namespaces/machinery/pods/berth-operator/log',
  );
  // With a limit of bytes, the API server would leave out the newest lines.
  expect(read.filter((one) => one.includes('limitBytes'))).toEqual([]);
});

it('reads the logs of operator and server, even after many agents', async () => {
  const pod = (name: string, component: string) => ({
    metadata: { name, namespace: 'berth-system', labels: { 'app.kubernetes.io/component': component } },
    spec: { containers: [{ name: component }] },
  });
  const agents = Array.from({ length: 60 }, (_, index) => pod(`berth-agent-${index}`, 'agent'));
  const pods = [...agents, pod('berth-operator-x', 'operator'), pod('berth-server-x', 'server')];
  const logs = [...(await bundleOf({ pods })).keys()].filter((name) => name.startsWith('logs/'));
  expect(logs).toHaveLength(50);
  expect(logs).toContain('logs/0-berth-operator-x-operator.log');
  expect(logs).toContain('logs/1-berth-server-x-server.log');
});
