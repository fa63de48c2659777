import { expect, it } from 'vitest';
import type { HostPod } from '../api/http/host.ts';
import { DEDICATED_KEY } from '../api/v1alpha1/names.ts';
import type { KubeClient } from '../kube/client.ts';
import type { Node } from '../kube/core.ts';
import { ApiError } from '../kube/errors.ts';
import { changeTag, dedicate, type HostAccess } from './nodes.ts';

const DEFAULT = 'platform-default';

function machine(namespace: string, name: string, phase = 'Running'): HostPod {
  return { metadata: { namespace, name }, spec: { containers: [] }, status: { phase } };
}

/** Host of one namespace at an API server. `written` has the labels that were written. */
class Host {
  readonly written: (string | null)[] = [];
  label: string | undefined;
  /** Machines of the host at each look. */
  readonly looks: (() => HostPod[])[];
  write: () => void = () => undefined;

  constructor(label: string | undefined, ...looks: (() => HostPod[])[]) {
    this.label = label;
    this.looks = looks;
  }

  async move(from: string, to: string): Promise<void> {
    const client = {
      get: async () => ({
        metadata: { name: 'host-1', labels: this.label === undefined ? {} : { [DEDICATED_KEY]: this.label } },
      }),
      list: async () => ({ items: this.looks.shift()?.() ?? [] }),
      mergePatch: async (_type: unknown, _ref: unknown, { metadata }: { metadata: Node['metadata'] }) => {
        this.write();
        const label = metadata.labels?.[DEDICATED_KEY] ?? null;
        this.written.push(label);
        this.label = label ?? undefined;
      },
    } as unknown as KubeClient;
    const requireHost: HostAccess['requireHost'] = ({ metadata }, namespace) => {
      if ((metadata.labels?.[DEDICATED_KEY] ?? DEFAULT) !== namespace) {
        throw new Error('not a host of the namespace');
      }
    };
    await dedicate({ client, defaultNamespace: DEFAULT, requireHost }, { host: 'host-1', from, to });
  }
}

it('refuses to move a host with machines, and names some of them', async () => {
  const many = Array.from({ length: 7 }, (_, index) => machine('platform-a', `vm-${index}`));
  const host = new Host('platform-a', () => many);
  await expect(host.move('platform-a', 'platform-b')).rejects.toMatchObject({
    kind: 'refused',
    message: expect.stringMatching(
      /^Host host-1 still runs VMs or emulators: platform-a\/vm-0, .*platform-a\/vm-4 and 2 more$/,
    ),
  });
  expect(host.written).toEqual([]);
  const free = new Host('platform-a', () => [machine('platform-a', 'done', 'Succeeded')]);
  await free.move('platform-a', DEFAULT);
  expect(free.written).toEqual([null]);
});

it('gives the host back when a machine of the former namespace came meanwhile', async () => {
  const none = () => [];
  const host = new Host('platform-a', none, () => [machine('platform-a', 'late')]);
  await expect(host.move('platform-a', 'platform-b')).rejects.toThrow(
    'Host host-1 still runs VMs or emulators: platform-a/late',
  );
  expect(host.written).toEqual(['platform-b', 'platform-a']);
  const own = new Host('platform-a', none, () => [machine('platform-b', 'first')]);
  await own.move('platform-a', 'platform-b');
  expect(own.written).toEqual(['platform-b']);
});

it('gives the host back when the machines cannot be read again, and reports that error', async () => {
  const host = new Host(
    undefined,
    () => [],
    () => {
      throw new Error('unreachable');
    },
  );
  let writes = 0;
  host.write = () => {
    writes += 1;
    if (writes > 1) {
      throw new Error('the way back failed');
    }
  };
  await expect(host.move(DEFAULT, 'platform-b')).rejects.toThrow('unreachable');
  expect([writes, host.written]).toEqual([2, ['platform-b']]);
});

it('removes the label of a host that stays in the default namespace, also while machines run', async () => {
  const runs = () => [machine('platform-a', 'runs')];
  const dedicated = new Host('platform-a', runs);
  await dedicated.move('platform-a', 'platform-a');
  expect(dedicated.written).toEqual([]);
  const host = new Host(DEFAULT, runs);
  await host.move(DEFAULT, DEFAULT);
  expect(host.written).toEqual([null]);
});

it('moves no host of another namespace', async () => {
  const host = new Host('platform-b');
  await expect(host.move(DEFAULT, 'platform-a')).rejects.toThrow('not a host of the namespace');
  expect(host.written).toEqual([]);
});

const LIMIT = 64;
const change = { namespace: 'platform-ci', host: 'host-1' };
const requireHost: HostAccess['requireHost'] = ({ metadata }, namespace) => {
  if (metadata.labels?.['namespace'] !== namespace) {
    throw new ApiError('not found', { status: 404, reason: 'NotFound' });
  }
};

/** API server with one host. `meanwhile` changes the host before the first write. */
class FakeServer {
  version = 1;
  labels: Record<string, string> = { namespace: 'platform-ci' };
  meanwhile: () => void = () => undefined;

  readonly client = {
    get: async () => ({
      metadata: { name: 'host-1', resourceVersion: `${this.version}`, labels: this.labels },
    }),
    mergePatch: async (_type: unknown, _ref: unknown, { metadata }: { metadata: Node['metadata'] }) => {
      this.meanwhile();
      this.meanwhile = () => undefined;
      if (metadata.resourceVersion !== `${this.version}`) {
        throw new ApiError('changed', { status: 409, reason: 'Conflict' });
      }
      this.labels = { ...this.labels, ...metadata.labels };
    },
  } as unknown as KubeClient;

  change(labels: Record<string, string>): void {
    this.version += 1;
    this.labels = { ...this.labels, ...labels };
  }
}

it('gives a host no more than 64 tags', async () => {
  const server = new FakeServer();
  const tag = (name: string) =>
    changeTag({ client: server.client, requireHost }, { ...change, tag: name, isSet: true });
  for (let count = 0; count < LIMIT; count += 1) {
    await tag(`tag-${count}`);
  }
  await expect(tag('more')).rejects.toMatchObject({ kind: 'refused' });
  await tag('tag-0');
  await changeTag({ client: server.client, requireHost }, { ...change, tag: 'tag-0', isSet: false });
  expect(server.labels).toMatchObject({ 'tag.berth.dev/tag-0': null, 'tag.berth.dev/tag-1': '' });
});

it('changes no host that leaves the namespace meanwhile, and tries again after another change', async () => {
  const server = new FakeServer();
  server.meanwhile = () => server.change({ other: 'label' });
  await changeTag({ client: server.client, requireHost }, { ...change, tag: 'fast', isSet: true });
  expect(server.labels).toMatchObject({ 'tag.berth.dev/fast': '' });
  server.meanwhile = () => server.change({ namespace: 'platform-other' });
  const late = changeTag({ client: server.client, requireHost }, { ...change, tag: 'late', isSet: true });
  await expect(late).rejects.toMatchObject({ status: 404 });
  expect(server.labels).not.toHaveProperty(['tag.berth.dev/late']);
});
