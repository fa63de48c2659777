import { expect, it } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import type { Node } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import { changeTag } from './tags.ts';

const LIMIT = 64;
const change = { namespace: 'platform-ci', host: 'host-1' };
const hosts = { namespaceOf: ({ metadata }: Node) => metadata.labels?.['namespace'] ?? '' };

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
  const tag = (name: string) => changeTag(server.client, hosts, { ...change, tag: name, isSet: true });
  for (let count = 0; count < LIMIT; count += 1) {
    await tag(`tag-${count}`);
  }
  await expect(tag('more')).rejects.toMatchObject({ status: 409 });
  await tag('tag-0');
  await changeTag(server.client, hosts, { ...change, tag: 'tag-0', isSet: false });
  expect(server.labels).toMatchObject({ 'tag.berth.dev/tag-0': null, 'tag.berth.dev/tag-1': '' });
});

it('changes no host that leaves the namespace meanwhile, and tries again after another change', async () => {
  const server = new FakeServer();
  server.meanwhile = () => server.change({ other: 'label' });
  await changeTag(server.client, hosts, { ...change, tag: 'fast', isSet: true });
  expect(server.labels).toMatchObject({ 'tag.berth.dev/fast': '' });
  server.meanwhile = () => server.change({ namespace: 'platform-other' });
  const late = changeTag(server.client, hosts, { ...change, tag: 'late', isSet: true });
  await expect(late).rejects.toMatchObject({ status: 404 });
  expect(server.labels).not.toHaveProperty(['tag.berth.dev/late']);
});
