/** The noun `node`: the hosts of a namespace, their tags and their namespace. */
import { formatSize } from '../api/v1alpha1/quantity.ts';
import type { Command } from 'commander';
import type { Globals } from './globals.ts';
import type { Terminal } from './terminal.ts';
import { hostsOf, ownerOfHost } from '../api/v1alpha1/hosts.ts';
import {
  DEFAULT_NAMESPACE,
  GIVE_UP_PREFIX,
  HOST_MARK,
  HOST_RECORDS,
  HOST_VALUE,
  isObjectName,
  isTag,
  NAMESPACE_PREFIX,
  SYSTEM_NAMESPACE,
  TAG_FORM,
} from '../api/v1alpha1/names.ts';
import { pause, timestamp } from '../base/time.ts';
import type { KubeClient } from '../kube/client.ts';
import { readData, writeData } from '../kube/configmapdata.ts';
import { NAMESPACES, type Node, NODES, PODS } from '../kube/core.ts';
import { ApiError, isNotFound, unlessMissing } from '../kube/errors.ts';
import { type UserCluster, withCluster } from './cluster.ts';
import { CommandError, EXIT } from './errors.ts';
import { type Column, print, printDone } from './output.ts';
import { HOSTS_SELECTOR, nodeItem, WORKLOADS_SELECTOR } from '../api/http/host.ts';
import type { NodeItem } from '../api/http/node.ts';
import { directOrAsked, namespacePath } from './httpapi.ts';
import { forEachName } from './objects/named.ts';
import { changeTag as changeTagOf, dedicate, type HostAccess, type TagChange } from '../actions/nodes.ts';
import { isServed } from './namespace.ts';
import { printable } from './text.ts';
import { ActionError } from '../actions/error.ts';
import { undefinedIf } from '../base/errors.ts';
import { similarTo } from '../base/similar.ts';

export function addNodeCommands(noun: Command, terminal: Terminal): void {
  const show = async (names: string[], _flags: object, command: Command) => {
    await list(terminal, command.optsWithGlobals<Globals>(), names);
  };
  noun
    .command('list')
    .alias('ls')
    .description('List the hosts of the namespace')
    .argument('[names...]', 'names of the hosts to list (default: all)')
    .action(show);
  noun.command('get').description('Show hosts').argument('<names...>', 'names of the hosts').action(show);
  for (const [verb, description, isSet] of [
    ['tag', 'Add a tag to a host. A host can have at most 64 tags', true],
    [
      'untag',
      'Remove a tag from a host. If the configuration of the host has the tag, its agent adds the tag again',
      false,
    ],
  ] as const) {
    noun
      .command(verb)
      .description(description)
      .argument('<name>', 'name of the host')
      .argument('<tag>', 'the tag')
      .action(async (name: string, tag: string, _flags, command: Command) => {
        await changeTag(terminal, command.optsWithGlobals<Globals>(), { name, tag, isSet });
      });
  }
  noun
    .command('give-up')
    .description(
      'Give up a host that is gone for good, also if its Node was deleted. Its VMs that have run are lost. The command is refused while the host reports',
    )
    .argument('<name>', 'name of the host')
    .action(async (name: string, _flags, command: Command) => {
      await giveUpHost(terminal, command.optsWithGlobals<Globals>(), name);
    });
  noun
    .command('namespace')
    .description(
      'Give a host of the namespace to another namespace. The command is refused while a VM runs on the host',
    )
    .argument('<name>', 'name of the host')
    .argument('<target>', 'namespace that receives the host. To return the host, name the default namespace')
    .action(async (name: string, target: string, _flags, command: Command) => {
      await giveHost(terminal, command.optsWithGlobals<Globals>(), { name, target });
    });
}

/** ConfigMap in which administrators ask the operator to give a host up. */
const RECORDS = { namespace: SYSTEM_NAMESPACE, name: HOST_RECORDS };
/** Time in milliseconds between two looks whether the operator has answered the request. */
const LOOK_MILLISECONDS = 500;
/** Time limit for the answer of the operator, in milliseconds. A new leader needs some 20 s until it answers. */
const ANSWER_MILLISECONDS = 60_000;

/**
 * Asks the operator to give the host up, and waits for its answer. The host need not have a Node, and a Node stays. Only the user's own rights
 * count: to read Nodes, and to read and patch the ConfigMap.
 *
 * @throws CommandError when the host reports, or when the operator does not answer in time; ApiError.
 */
export async function giveUpHost(terminal: Terminal, globals: Globals, name: string): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async ({ client, namespace }) => {
    requireHostName(name, namespace);
    const key = `${GIVE_UP_PREFIX}${name}`;
    await writeData(client, RECORDS, { [key]: timestamp(Date.now()) });
    await untilAnswered(client, key, signal);
    const node = await unlessMissing(client.get(NODES, { name }, { signal }));
    const ready = node?.status?.conditions?.find(({ type }) => type === 'Ready');
    if (node !== undefined && ready?.status !== 'Unknown') {
      throw new CommandError(
        `Host ${name} reports, so it was not given up. Delete its VMs, or stop its agent and wait until the Node is not Ready`,
      );
    }
    await printDone(terminal, globals.output, [{ name }], 'Successfully gave up node');
  });
}

async function untilAnswered(client: KubeClient, key: string, signal: AbortSignal): Promise<void> {
  const deadline = performance.now() + ANSWER_MILLISECONDS;
  while ((await readData(client, RECORDS))[key] !== undefined) {
    if (performance.now() > deadline) {
      throw new CommandError(
        'The operator did not answer in 60 s. It gives the host up as soon as it runs. To withdraw the request, ' +
          `remove the key ${key} of ConfigMap ${RECORDS.name} in namespace ${RECORDS.namespace}`,
        EXIT.noAnswer,
      );
    }
    await pause(LOOK_MILLISECONDS, signal);
  }
}

const COLUMNS: readonly Column<NodeItem>[] = [
  { header: 'NAME', value: ({ name }) => name },
  { header: 'STATUS', value: ({ phase }) => phase },
  { header: 'IP', value: ({ nodeIP }) => nodeIP },
  { header: 'CPU', value: ({ availableCpu, allocatableCpu }) => `${availableCpu}/${allocatableCpu}` },
  {
    header: 'MEMORY',
    value: ({ availableMemory, allocatableMemory }) =>
      `${formatSize(availableMemory) ?? ''}/${formatSize(allocatableMemory) ?? ''}`,
  },
  { header: 'SLOTS', value: ({ slotsFree, slots }) => `${slotsFree}/${slots}` },
  { header: 'ARCHITECTURE', value: ({ architecture }) => architecture },
  { header: 'TAGS', value: ({ tags }) => tags.join(',') },
  { header: 'REASON', value: ({ reason }) => reason },
  { header: 'AGENT', value: ({ versions }) => versions.agent, isWide: true },
  { header: 'OS', value: ({ versions }) => versions.os, isWide: true },
  { header: 'MESSAGE', value: ({ message }) => message, isWide: true },
];

/**
 * Lists the named hosts. Without names, lists all hosts of the namespace. In a cell like `3/8`, the first number is the free amount, and
 * the second number is the total amount.
 */
export async function list(terminal: Terminal, globals: Globals, names: readonly string[]): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const hosts = await directOrAsked(
      cluster,
      signal,
      async () => await readItems(cluster, signal),
      async (server) => {
        const answer = await server({ method: 'GET', path: namespacePath(namespace, 'nodes') });
        return (answer as { items: NodeItem[] }).items;
      },
    );
    const { done: rows, rethrow } = await forEachName(
      names.length === 0 ? hosts.map(({ name }) => name) : names,
      async (name) => {
        const host = hosts.find((one) => one.name === name);
        if (host === undefined) {
          throw hostNotFound(name, namespace);
        }
        return host;
      },
    );
    if (rows.length > 0 || names.length === 0) {
      const none = `There are no hosts in namespace ${namespace}`;
      await print(terminal, globals.output, { rows, columns: COLUMNS, itemOf: (item) => item, none });
    }
    rethrow();
  });
}

async function readItems(cluster: UserCluster, signal: AbortSignal): Promise<NodeItem[]> {
  const { client } = cluster;
  const [{ own }, { items: pods }] = await Promise.all([
    readHosts(cluster, signal),
    client.list(PODS, { labelSelector: WORKLOADS_SELECTOR, signal }),
  ]);
  return own.map((host) => {
    const { name } = host.metadata;
    return nodeItem(
      host,
      pods.filter(({ spec }) => spec.nodeName === name),
      ownerOfHost(host, DEFAULT_NAMESPACE),
    );
  });
}

interface Gift {
  readonly name: string;
  /** Namespace that gets the host. */
  readonly target: string;
}

/**
 * Gives a host of the current namespace to another namespace.
 *
 * @throws CommandError when machines run on the host, or when a name is wrong; ApiError.
 */
export async function giveHost(terminal: Terminal, globals: Globals, gift: Gift): Promise<void> {
  const { name } = gift;
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const target = cluster.realNamespace(gift.target);
    if (!isServed(target) || !isObjectName(target)) {
      throw new CommandError(
        `The target ${JSON.stringify(printable(target))} must be ${DEFAULT_NAMESPACE}, or a namespace whose name begins with ${NAMESPACE_PREFIX}`,
        EXIT.usage,
      );
    }
    requireHostName(name, namespace);
    await directOrAsked(
      cluster,
      signal,
      async () => await giveDirectly(cluster, { name, target }, signal),
      async (server) => {
        const path = namespacePath(namespace, 'nodes', name, 'namespace');
        await server({ method: 'POST', path, body: { namespace: target } });
      },
    );
    const text = `Namespace ${target} now owns the node`;
    const item = { name, namespace: target };
    await printDone(terminal, globals.output, [item], text);
  });
}

async function giveDirectly(
  cluster: UserCluster,
  { name, target }: Gift,
  signal: AbortSignal,
): Promise<void> {
  const { namespace } = cluster;
  await requireNamespace(cluster, target, signal);
  await findHost(cluster, name, signal);
  const dedication = { host: name, from: namespace, to: target };
  await changingHost(cluster, name, async (access) => await dedicate(access, dedication));
}

/** @throws CommandError when the namespace does not exist; ApiError. */
async function requireNamespace({ client }: UserCluster, name: string, signal: AbortSignal): Promise<void> {
  try {
    await client.get(NAMESPACES, { name }, { signal });
  } catch (error) {
    throw isNotFound(error)
      ? new CommandError(`namespace ${JSON.stringify(name)} not found`, EXIT.notFound)
      : error;
  }
}

/** Adds the tag to the host, or removes it. @throws CommandError when the host or the tag is wrong; ApiError. */
export async function changeTag(
  terminal: Terminal,
  globals: Globals,
  { name, tag, isSet }: Pick<TagChange, 'tag' | 'isSet'> & { readonly name: string },
): Promise<void> {
  requireTag('tag', tag);
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    requireHostName(name, namespace);
    await directOrAsked(
      cluster,
      terminal.signal,
      async () =>
        await changingHost(
          cluster,
          name,
          async (access) =>
            await changeTagOf(access, { namespace, host: name, tag, isSet }).catch((error: unknown) =>
              withAdvice(error, name),
            ),
        ),
      async (server) => {
        const path = namespacePath(namespace, 'nodes', name, isSet ? 'tag' : 'untag');
        await server({ method: 'POST', path, body: { tag } });
      },
    );
    const item = { name, tag };
    const text = `Successfully ${isSet ? 'added' : 'removed'} tag ${tag} ${isSet ? 'to' : 'from'} node`;
    await printDone(terminal, globals.output, [item], text);
  });
}

function withAdvice(error: unknown, host: string): never {
  throw error instanceof ActionError
    ? new ActionError(
        error.kind,
        `${error.message}. First remove a tag with \`berth node untag ${host} TAG\``,
      )
    : error;
}

/**
 * Checks whether a host can have the tag. `field` names the argument or flag in the message. @throws CommandError when no host can have the
 * tag.
 */
export function requireTag(field: string, tag: string): void {
  if (!isTag(tag)) {
    throw new CommandError(`The ${field} ${JSON.stringify(printable(tag))} ${TAG_FORM}`, EXIT.usage);
  }
}

/** Returns the Nodes of all hosts. @throws ApiError when the user may not read Nodes. */
async function allHosts({ client }: UserCluster, signal: AbortSignal): Promise<readonly Node[]> {
  return (await client.list(NODES, { labelSelector: HOSTS_SELECTOR, signal })).items;
}

/** Hosts of the cluster. */
interface KnownHosts {
  readonly all: readonly Node[];
  /** Hosts that VMs of the namespace of the command can run on, in the order of their names. */
  readonly own: readonly Node[];
}

/** Returns the hosts of all namespaces and those of the command's namespace. @throws ApiError when the user may not read Nodes. */
export async function readHosts(cluster: UserCluster, signal: AbortSignal): Promise<KnownHosts> {
  const { client, namespace: name } = cluster;
  const [all, namespace] = await Promise.all([
    allHosts(cluster, signal),
    client.get(NAMESPACES, { name }, { signal }),
  ]);
  return { all, own: hostsOf(namespace, all) };
}

/**
 * Returns the error for a missing host. `meant` is a sentence at the end of the message, for example about the host that the user might
 * have meant.
 */
export function hostNotFound(name: string, namespace: string, meant = ''): CommandError {
  return new CommandError(
    `node ${JSON.stringify(printable(name))} not found in namespace ${namespace}${meant}`,
    EXIT.notFound,
  );
}

/** Returns the end of an error message: a question that suggests the most similar name. The result is empty if no name is similar. */
export function meantHost(mistyped: string, names: readonly string[]): string {
  const similar = similarTo(mistyped, names);
  return similar === undefined ? '' : `. Did you mean ${similar}?`;
}

/** Refuses names that no Node can have. Such a name could change the path of a request. @throws CommandError. */
export function requireHostName(name: string, namespace: string): void {
  if (!isObjectName(name)) {
    throw hostNotFound(name, namespace);
  }
}

/** Returns the host. @throws CommandError when it does not exist or belongs to another namespace; ApiError. */
export async function findHost(cluster: UserCluster, name: string, signal: AbortSignal): Promise<Node> {
  const { client, namespace } = cluster;
  const asked = client.get(NODES, { name }, { signal });
  return requiredHost(await foundIn(cluster, name, asked), namespace);
}

/** Changes a host of the namespace. @throws CommandError when the host does not exist or belongs to another namespace; errors of `change`. */
export async function changingHost(
  cluster: UserCluster,
  name: string,
  change: (access: HostAccess) => Promise<void>,
): Promise<void> {
  const { client } = cluster;
  const access = { client, defaultNamespace: DEFAULT_NAMESPACE, requireHost: requiredHost };
  await foundIn(cluster, name, change(access));
}

/** Resolves with the result of the work on a host. @throws CommandError when the host does not exist; other errors of `work`. */
async function foundIn<T>(cluster: UserCluster, name: string, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw isNotFound(error) ? hostNotFound(name, cluster.namespace, await suggestion(cluster, name)) : error;
  }
}

/**
 * Returns the Node if it is a host of the namespace.
 *
 * @throws CommandError when it is not a host, or when it belongs to another namespace.
 */
function requiredHost(node: Node, namespace: string): Node {
  const { name, labels } = node.metadata;
  if (labels?.[HOST_MARK] !== HOST_VALUE) {
    throw hostNotFound(name, namespace, '. The Node is not a host of Berth');
  }
  const owner = ownerOfHost(node, DEFAULT_NAMESPACE);
  if (owner !== namespace) {
    throw hostNotFound(name, namespace, `. It belongs to namespace ${owner}: use --namespace ${owner}`);
  }
  return node;
}

async function suggestion({ client, namespace }: UserCluster, name: string): Promise<string> {
  const pages = client.pages(NODES, { labelSelector: HOSTS_SELECTOR });
  const page = await undefinedIf((error) => error instanceof ApiError, pages.next());
  const hosts = page?.done === false ? page.value.items : [];
  const own = hosts.filter((host) => ownerOfHost(host, DEFAULT_NAMESPACE) === namespace);
  return meantHost(
    name,
    own.map(({ metadata }) => metadata.name),
  );
}
