/** The command `berth` changes hosts of a namespace and their cache of images, for cluster admins and for members of the namespace. */
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { contentName } from '../../api/v1alpha1/cachetargets.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { IMAGE_CACHE_ENTRIES, IMAGES } from '../../api/v1alpha1/resources.ts';
import { NODES, PODS } from '../../kube/core.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken, writeTokenKubeconfig } from '../support/members.ts';
import { BerthCommand, type CommandOptions, type CommandResult } from '../wires/berth.ts';

const DEDICATED = 'berth.node-restriction.kubernetes.io/namespace';
const namespace = `platform-cli-${randomBytes(4).toString('hex')}`;
/** Another namespace of the same cluster. */
const other = `${namespace}-other`;
const hosts = ['0', '1', '2'].map((suffix) => `${namespace}-${suffix}`);
const [first = '', second = '', third = ''] = hosts;
/** Image of a registry, in a spelling that is not the normalized one. */
const IMAGE = `registry.example/${namespace}`;
const DIGEST = `sha256:${'a'.repeat(64)}`;
/** Digest of the Image `desktop`. */
const DESKTOP = `sha256:${'d'.repeat(64)}`;

let cluster: Cluster;
let server: ServerProcess;
let command: BerthCommand;
/** Kubeconfig of a member of the namespace with the role admin. */
let member: string;
/** Kubeconfig of a user without a role. */
let stranger: string;
/** Variables with which the command trusts the certificate of the HTTP API. */
let environment: Record<string, string>;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  await cluster.createNamespace(other);
  await Promise.all(hosts.map(createHost));
  server = await cluster.startServer({ name: `server-${namespace}` });
  const authority = join(cluster.directory, `${namespace}.crt`);
  writeFileSync(authority, server.authority);
  environment = { NODE_EXTRA_CA_CERTS: authority };
  const role = 'berth-role-admin';
  const memberToken = await accountToken(cluster, { namespace, name: 'member' }, { role });
  member = await writeTokenKubeconfig(cluster, memberToken, `${namespace}-member`);
  const strangerToken = await accountToken(cluster, { namespace, name: 'stranger' });
  stranger = await writeTokenKubeconfig(cluster, strangerToken, `${namespace}-stranger`);
  command = await BerthCommand.make(cluster.kubeconfig);
  command.configure(`apiURL: ${server.url}\n`);
  await waitFor('the rights', async () => (await asMember('node', 'list')).code === 0);
});

afterAll(async () => {
  await command?.[Symbol.asyncDispose]();
  await server?.process.stop();
  for (const { metadata } of await entries()) {
    await cluster.client().delete(IMAGE_CACHE_ENTRIES, metadata);
  }
  await cluster?.kubectl(['delete', 'node', ...hosts, '--ignore-not-found']);
  await cluster?.kubectl(['delete', 'namespace', namespace, other, '--wait=false']);
  await cluster?.disconnect();
});

/** Creates the Node of a host of the namespace. No agent is there. */
async function createHost(name: string): Promise<void> {
  await cluster.client().create(NODES, {
    metadata: {
      name,
      labels: {
        'berth.dev/host': 'true',
        'berth.node-restriction.kubernetes.io/host': 'true',
        [DEDICATED]: namespace,
      },
    },
    spec: { taints: [{ key: 'berth.dev/host', value: 'true', effect: 'NoSchedule' }] },
    status: { allocatable: { cpu: '16', memory: '64Gi', pods: '110', 'berth.dev/slot': '4' } },
  });
}

async function as(kubeconfig: string, args: readonly string[], more: CommandOptions = {}) {
  return await command.run([...args, '--namespace', namespace], { environment, kubeconfig, ...more });
}

/** Runs the command as a cluster admin. */
async function berth(...args: string[]): Promise<CommandResult> {
  return await as(cluster.kubeconfig, args);
}

async function asMember(...args: string[]): Promise<CommandResult> {
  return await as(member, args);
}

/** Runs the command as an integration does: both streams are one, and all of it must be JSON. */
async function json(kubeconfig: string, ...args: string[]): Promise<unknown> {
  const { code, out } = await as(kubeconfig, [...args, '-o', 'json'], { together: true });
  expect([code, out]).toEqual([0, expect.stringMatching(/^\[/)]);
  return JSON.parse(out) as unknown;
}

async function labelsOf(name: string): Promise<Readonly<Record<string, string>>> {
  return (await cluster.client().get(NODES, { name })).metadata.labels ?? {};
}

/** Returns the entries of this test's images. */
async function entries(): Promise<ImageCacheEntry[]> {
  return (await cluster.client().list(IMAGE_CACHE_ENTRIES, { namespace })).items;
}

/** Returns the hosts that the entry for the image of the registry names; undefined without an entry. */
async function targets(): Promise<readonly string[] | undefined> {
  const [entry, ...more] = (await entries()).filter(({ spec }) => spec.reference !== undefined);
  expect(more).toEqual([]);
  return entry?.spec.targets?.nodes;
}

describe('node tag and untag', () => {
  it('change the tags of a host, for cluster admins and for admins of the namespace', async () => {
    expect(await berth('node', 'tag', first, 'fast')).toEqual({
      code: 0,
      out: `Successfully added tag fast to node ${first}\n`,
      err: '',
    });
    expect(await json(member, 'node', 'tag', first, 'New_1.x')).toEqual([{ name: first, tag: 'New_1.x' }]);
    expect(await labelsOf(first)).toMatchObject({ 'tag.berth.dev/fast': '', 'tag.berth.dev/New_1.x': '' });
    expect(await asMember('node', 'untag', first, 'fast')).toEqual({
      code: 0,
      out: `Successfully removed tag fast from node ${first}\n`,
      err: '',
    });
    await berth('node', 'untag', first, 'New_1.x');
    expect(Object.keys(await labelsOf(first)).filter((label) => label.startsWith('tag.'))).toEqual([]);
  });

  it('refuse what cannot be, and name the mistake', async () => {
    const mistyped = first.replace('platform', 'plattform');
    const results = await Promise.all([
      berth('node', 'tag', first, 'a/b'),
      asMember('node', 'tag', first, 'x'.repeat(64)),
      berth('node', 'tag', mistyped, 'fast'),
      asMember('node', 'tag', mistyped, 'fast'),
      berth('node', 'tag', '../pods', 'fast'),
      as(stranger, ['node', 'tag', first, 'fast']),
    ]);
    const allowed = 'must be 1 to 63 letters, digits, "-", "_" and ".", with a letter or digit at both ends';
    expect(results.map(({ code, err }) => [code, err])).toEqual([
      [2, `error: The tag "a/b" ${allowed}\n`],
      [2, `error: The tag "${'x'.repeat(64)}" ${allowed}\n`],
      [4, `error: node "${mistyped}" not found in namespace ${namespace}. Did you mean ${first}?\n`],
      [4, expect.stringContaining(`"${mistyped}" not found`)],
      [4, `error: node "../pods" not found in namespace ${namespace}\n`],
      [3, expect.stringMatching(/cannot update resource "hosts\/tags".*Ask an admin of the namespace/)],
    ]);
    expect(await labelsOf(first)).not.toHaveProperty(['tag.berth.dev/fast']);
  });

  it('hold a host to its limit of 64 tags, as the HTTP API does', async () => {
    const labels = Object.fromEntries(
      Array.from({ length: 64 }, (_, index) => [`tag.berth.dev/t${index}`, '']),
    );
    await cluster.client().mergePatch(NODES, { name: third }, { metadata: { labels } });
    const results = [await berth('node', 'tag', third, 'more'), await asMember('node', 'tag', third, 'more')];
    const refusal = `Host ${third} has 64 tags. At most 64 tags are allowed`;
    expect(results.map(({ code, err }) => [code, err.includes(refusal)])).toEqual([
      [1, true],
      [1, true],
    ]);
    expect((await berth('node', 'tag', third, 't0')).code).toBe(0);
    const none = Object.fromEntries(Object.keys(labels).map((label) => [label, null]));
    await cluster.client().mergePatch(NODES, { name: third }, { metadata: { labels: none } });
  });
});

describe('node namespace', () => {
  const giveBack = ['node', 'namespace', third, namespace, '-n', other];

  it('gives a host to another namespace and back, but not while a VM runs there', async () => {
    const given = await json(cluster.kubeconfig, 'node', 'namespace', third, other);
    expect(given).toEqual([{ name: third, namespace: other }]);
    expect(await labelsOf(third)).toMatchObject({ [DEDICATED]: other });
    const { code, err } = await berth('node', 'namespace', third, other);
    expect([code, err]).toEqual([
      4,
      `error: node "${third}" not found in namespace ${namespace}. It belongs to namespace ${other}: use --namespace ${other}\n`,
    ]);
    await runMachine();
    const refused = await command.run(giveBack, { environment });
    expect([refused.code, refused.err]).toEqual([
      1,
      `error: Host ${third} still runs VMs or emulators: ${other}/machine\n`,
    ]);
    await cluster.client().delete(PODS, { namespace: other, name: 'machine' }, { gracePeriodSeconds: 0 });
    expect((await command.run(giveBack, { environment })).out).toBe(
      `Namespace ${namespace} now owns the node ${third}\n`,
    );
    expect(await labelsOf(third)).toMatchObject({ [DEDICATED]: namespace });
  });

  it('refuses other targets, and users without the right', async () => {
    const results = await Promise.all([
      berth('node', 'namespace', third, 'kube-system'),
      berth('node', 'namespace', third, 'platform-absent'),
      berth('node', 'namespace', 'absent', other),
      asMember('node', 'namespace', third, other),
    ]);
    expect(results.map(({ code }) => code)).toEqual([2, 4, 4, 3]);
    const [target, missing, absent, refused] = results.map(({ err }) => err);
    expect(target).toContain('The target "kube-system" must be platform-default, or a namespace whose name');
    expect(missing).toBe('error: namespace "platform-absent" not found\n');
    expect(absent).toContain('node "absent" not found');
    expect(refused).toContain('cannot update resource "hosts/namespace"');
    expect(await labelsOf(third)).toMatchObject({ [DEDICATED]: namespace });
  });
});

/** Creates the Pod of a machine on the third host, which belongs to the other namespace then. */
async function runMachine(): Promise<void> {
  // The policies reserve such a Pod for the operator.
  const operator = '--as=system:serviceaccount:berth-system:berth-operator';
  const host = { key: 'berth.node-restriction.kubernetes.io/host', operator: 'In', values: ['true'] };
  const pod = {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'machine', namespace: other, labels: { 'berth.dev/workload': 'vm' } },
    spec: {
      nodeName: third,
      automountServiceAccountToken: false,
      affinity: {
        nodeAffinity: {
          requiredDuringSchedulingIgnoredDuringExecution: {
            nodeSelectorTerms: [{ matchExpressions: [host] }],
          },
        },
      },
      tolerations: [
        { key: 'berth.dev/host', operator: 'Equal', value: 'true', effect: 'NoSchedule' },
        { key: DEDICATED, operator: 'Equal', value: other, effect: 'NoSchedule' },
      ],
      containers: [{ name: 'machine', image: 'image' }],
    },
  };
  await cluster.kubectl(['create', '-f', '-', operator], { input: JSON.stringify(pod) });
}

describe('imagecache', () => {
  beforeAll(async () => {
    await cluster.client().create(IMAGES, {
      metadata: { namespace, name: 'desktop' },
      spec: { source: { registry: { reference: 'registry.example/desktop:1' } } },
    });
    await cluster
      .client()
      .mergePatch(
        IMAGES,
        { namespace, name: 'desktop' },
        { status: { digest: DESKTOP } },
        { subresource: 'status' },
      );
    const images = [
      { names: [contentName(DIGEST), `${IMAGE}:latest`], sizeBytes: 31_230_000_000 },
      { names: [contentName(DESKTOP)], sizeBytes: 1_000_000_000 },
    ];
    const status = { images };
    await cluster.client().mergePatch(NODES, { name: first }, { status }, { subresource: 'status' });
  });

  /** Writes the status of the only entry, as the operator does when the first host has the image and the second failed. */
  async function writeStatus(): Promise<void> {
    const [entry] = await entries();
    const nodes = [{ node: second, state: 'Failed', message: 'ImageAccessDenied: no credentials' }];
    const status = { digest: DIGEST, cached: 1, nodes, holders: [first, second] };
    const name = entry?.metadata.name ?? '';
    await cluster
      .client()
      .mergePatch(IMAGE_CACHE_ENTRIES, { namespace, name }, { status }, { subresource: 'status' });
  }

  it('add, info, list and remove: a member gets the same from the HTTP API as a cluster admin directly', async () => {
    expect(await berth('imagecache', 'add', IMAGE, '--nodes', `${second},${first}`)).toEqual({
      code: 0,
      out: [first, second].map((node) => `Requested caching of ${IMAGE} on node ${node}\n`).join(''),
      err: '',
    });
    expect((await targets())?.toSorted()).toEqual([first, second]);
    const info = ['imagecache', 'info', IMAGE];
    const message = 'ImageAccessDenied: no credentials';
    const items = [
      { node: first, status: 'ready', size: '31.23G' },
      { node: second, status: 'failed', message },
    ];
    await writeStatus();
    expect(await json(cluster.kubeconfig, ...info)).toEqual(items);
    expect(await json(member, ...info)).toEqual(items);
    expect((await berth(...info)).out).toMatch(
      /^NODE +STATUS +SIZE +MESSAGE\n.* ready +29.1Gi\n.* failed +ImageAccessDenied: no credentials\n$/,
    );
    const added = await json(member, 'imagecache', 'add', `${IMAGE}:latest`, '--nodes', third);
    expect(added).toEqual([{ node: third, code: 200, status: 'Success' }]);
    expect((await targets())?.toSorted()).toEqual(hosts);
    const listed = [
      { image: 'desktop', imageId: DESKTOP, size: '1.00G', nodes: 1, status: 'ready' },
      { image: IMAGE, tag: 'latest', imageId: DIGEST, size: '31.23G', nodes: 1, status: 'failed', message },
    ];
    expect(await json(cluster.kubeconfig, 'imagecache', 'list')).toEqual(listed);
    expect(await json(member, 'imagecache', 'list')).toEqual(listed);
    expect(await json(cluster.kubeconfig, 'imagecache', 'list', IMAGE)).toEqual(listed.slice(1));
    const removed = await json(cluster.kubeconfig, 'imagecache', 'remove', IMAGE, '--nodes', third);
    expect(removed).toEqual([{ node: third, code: 200, status: 'Success' }]);
    expect((await targets())?.toSorted()).toEqual([first, second]);
    expect((await asMember('imagecache', 'remove', IMAGE, '--all')).out).toBe(
      hosts.map((node) => `Requested removal of ${IMAGE} from node ${node}\n`).join(''),
    );
    expect(await targets()).toBeUndefined();
  });

  it('selects the hosts that have all of the tags, for an Image of the namespace', async () => {
    await Promise.all([
      berth('node', 'tag', first, 'fast'),
      berth('node', 'tag', second, 'fast'),
      berth('node', 'tag', third, 'new'),
    ]);
    await berth('node', 'tag', second, 'new');
    const change = (action: string) => ['imagecache', action, 'desktop', '--tags', 'fast,new'];
    const items = [{ node: second, code: 200, status: 'Success' }];
    expect(await json(cluster.kubeconfig, ...change('add'))).toEqual(items);
    const kept = (await entries()).filter(({ spec }) => spec.imageRef !== undefined);
    expect(kept.map(({ spec }) => spec)).toEqual([
      { imageRef: { namespace, name: 'desktop' }, targets: { nodes: [second], excludeNodes: [] } },
    ]);
    expect(await json(cluster.kubeconfig, ...change('remove'))).toEqual(items);
    // A VM brought the Image to the first host, and no entry keeps it there.
    const info = [{ node: first, status: 'ready', size: '1.00G' }];
    expect(await json(cluster.kubeconfig, 'imagecache', 'info', 'desktop')).toEqual(info);
    expect(await json(member, 'imagecache', 'info', 'desktop')).toEqual(info);
    const expected = `No host of namespace ${namespace} has all of these tags: slow\n`;
    for (const action of ['add', 'remove']) {
      const none = ['imagecache', action, 'desktop', '--tags', 'slow'];
      for (const { code, err } of [await berth(...none), await asMember(...none)]) {
        expect([code, err]).toEqual([4, `error: ${expected}`]);
      }
    }
  });

  it('changes nothing when one of several names is wrong, and cleans up hosts that are gone', async () => {
    await cluster.client().create(IMAGE_CACHE_ENTRIES, {
      metadata: { namespace, name: 'own' },
      spec: { reference: `${IMAGE}/own`, targets: { nodes: [first, `${namespace}-gone`] } },
    });
    const own = `${IMAGE}/own:latest`;
    const mistyped = `${namespace}-00`;
    const change = (action: string, name: string) => [
      'imagecache',
      action,
      own,
      '--nodes',
      `${second},${name}`,
    ];
    const results = await Promise.all([
      berth(...change('add', mistyped)),
      asMember(...change('add', mistyped)),
      berth(...change('remove', mistyped)),
      asMember(...change('remove', mistyped)),
      berth(...change('add', `x,${mistyped}`)),
    ]);
    const refusal = (name: string, meant = '') =>
      `error: node "${name}" not found in namespace ${namespace}${meant}\n`;
    const similar = refusal(mistyped, `. Did you mean ${first}?`);
    expect(results.map(({ code, out, err }) => [code, out, err])).toEqual([
      ...Array.from({ length: 4 }, () => [4, '', similar]),
      [4, '', refusal('x') + similar.replace('error: ', '')],
    ]);
    const nodes = async () =>
      (await cluster.client().get(IMAGE_CACHE_ENTRIES, { namespace, name: 'own' })).spec.targets?.nodes;
    expect(await nodes()).toEqual([first, `${namespace}-gone`]);
    expect((await berth(...change('remove', `${namespace}-gone`))).code).toBe(0);
    expect(await nodes()).toEqual([first]);
  });

  it('keeps the changes of several users at the same time', async () => {
    const image = `${IMAGE}/racing:1`;
    const add = async (node: string) => await berth('imagecache', 'add', image, '--nodes', node);
    const results = await Promise.all(hosts.map(add));
    expect(results.map(({ code, err }) => [code, err])).toEqual(hosts.map(() => [0, '']));
    const kept = (await entries()).filter(({ spec }) => spec.reference === image);
    expect(kept.map(({ spec }) => spec.targets?.nodes?.toSorted())).toEqual([hosts]);
  });

  it('adds the image to the other host when a tag excludes two', async () => {
    const image = `${IMAGE}/excluded:1`;
    await cluster.client().create(IMAGE_CACHE_ENTRIES, {
      metadata: { namespace, name: 'excluded' },
      spec: { reference: image, targets: { excludeTags: ['new'] } },
    });
    const expected = (node: string) => `Requested caching of ${image} on node ${node}\n`;
    const refusal = (node: string) =>
      `node ${node}: The host does not keep this image, because excludeTags contains a tag of the host\n`;
    expect(await berth('imagecache', 'add', image, '--all')).toEqual({
      code: 1,
      out: expected(first),
      err: `error: ${refusal(second)}${refusal(third)}`,
    });
    const kept = (await entries()).filter(({ spec }) => spec.reference === image);
    expect(kept.map(({ spec }) => spec.targets)).toMatchObject([{ nodes: [first], excludeTags: ['new'] }]);
  });

  it('refuses what cannot be, and names the mistake', async () => {
    const add = (image: string, ...flags: string[]) => berth('imagecache', 'add', image, ...flags);
    const results = await Promise.all([
      add(IMAGE),
      add(IMAGE, '--all', '--nodes', first),
      add(IMAGE, '--tags', 'fast,a/b'),
      add('registry.example/UPPER:1', '--all'),
      add('desktopp', '--all'),
      asMember('imagecache', 'remove', 'desktopp', '--all'),
      berth('imagecache', 'info', 'desktopp'),
      berth('imagecache', 'list', 'registry.example/absent'),
      as(stranger, ['imagecache', 'add', IMAGE, '--all']),
      command.run(['imagecache', 'list', '-n', namespace], {
        kubeconfig: stranger,
        environment: { XDG_CONFIG_HOME: '/nonexistent' },
      }),
    ]);
    const one = 'error: Choose the hosts with exactly one of --nodes, --tags and --all\n';
    const similar = `error: image "desktopp" not found in namespace ${namespace}. Did you mean desktop?\n`;
    expect(results.map(({ code, err }) => [code, err])).toEqual([
      [2, one],
      [2, one],
      [2, expect.stringMatching(/^error: The value of --tags "a\/b" must be 1 to 63 letters/)],
      [
        2,
        expect.stringMatching(
          /The image "registry.example\/UPPER:1" is not an image reference: "UPPER" is not/,
        ),
      ],
      [4, similar],
      [4, similar],
      [4, similar],
      [4, `error: image "registry.example/absent" not found on the hosts of namespace ${namespace}\n`],
      [3, expect.stringMatching(/cannot patch resource "imagecacheentries".*Ask an admin of the namespace/)],
      [3, expect.stringContaining('Members of a namespace need the HTTP API of Berth for this command')],
    ]);
  });
});
