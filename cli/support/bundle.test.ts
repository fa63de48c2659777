import { expect, it } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import type { Event } from '../../kube/core.ts';
import type { Resource } from '../../kube/objects.ts';
import { collect, Reader } from './bundle.ts';

function event(namespace: string, name: string, kind = 'Pod'): Partial<Event> {
  return { metadata: { name, namespace }, regarding: { kind } };
}

const EVENTS = [
  ...Array.from({ length: 2_500 }, (_, index) => event('apps', `other${index}`)),
  event('default', 'other'),
  event('default', 'of-a-host', 'Node'),
  event('platform-ci', 'of-a-cached-image', 'ImageCacheEntry'),
  event('elsewhere', 'of-anothers-cached-image', 'ImageCacheEntry'),
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

/** Largest size of one text, as in reader.ts. */
const TEXT_BYTES = 1024 * 1024;
const LINE_LENGTH = 1_000;

interface RawOptions {
  signal: AbortSignal;
  onData: (piece: Buffer) => void;
}

function line(number: number): string {
  return `${`line ${number} `.padEnd(LINE_LENGTH - 1, 'x')}\n`;
}

/** Returns a reader of a log with this number of lines. */
function readerOf(lines: number): Reader {
  const raw = async (_: string, _path: string, { signal, onData }: RawOptions) => {
    for (let number = 1; number <= lines; number += 1) {
      signal.throwIfAborted();
      onData(Buffer.from(line(number)));
    }
    return await Promise.resolve({ status: 200 });
  };
  return new Reader({ raw } as unknown as KubeClient, new AbortController().signal);
}

it('keeps the newest lines of a long log, and says so', async () => {
  const reader = readerOf(5_000);
  const text = (await reader.text('log of a', '/log')) ?? '';
  expect(text.endsWith(line(5_000))).toBe(true);
  // A part of a line could be a part of a secret, which nobody recognizes any more.
  expect(text).toMatch(/^line /);
  expect(text.length).toBeGreaterThan(TEXT_BYTES - 2 * LINE_LENGTH);
  expect(text.length).toBeLessThanOrEqual(TEXT_BYTES);
  expect(reader.unread).toEqual([{ part: 'log of a', cause: `Only the last ${TEXT_BYTES} bytes are kept` }]);
});

it('returns a short log unchanged', async () => {
  const reader = readerOf(3);
  expect(await reader.text('log of a', '/log')).toBe(line(1) + line(2) + line(3));
  expect(reader.unread).toEqual([]);
});

it('ends a text without end', async () => {
  const reader = readerOf(Infinity);
  expect((await reader.text('metrics of a', '/metrics'))?.length).toBeLessThanOrEqual(TEXT_BYTES);
  expect(reader.unread).toEqual([{ part: 'metrics of a', cause: expect.stringContaining('bytes') }]);
});
