/** The verbs `list`, `get` and `delete`, which most nouns have. */
import type { Command } from 'commander';
import type { KubeObject } from '../../kube/objects.ts';
import { BooleanFlag } from '../flags.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import { type Kind, listingOf, report } from './kind.ts';
import { DEFAULT_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { undefinedIf } from '../../base/errors.ts';
import { isForbidden } from '../../kube/errors.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import { lineBelow, print } from '../output.ts';
import { findNamed, forEachName, getNamed, placeOf } from './named.ts';
import { follow, followAll } from '../../kube/follow.ts';
import { CommandError, EXIT } from '../errors.ts';

/** Adds the verbs `list` and `get`. */
export function addShowVerbs<T extends KubeObject>(noun: Command, terminal: Terminal, kind: Kind<T>): void {
  const show = async (names: string[], _flags: object, command: Command) => {
    await list(terminal, command.optsWithGlobals<Globals>(), kind, names);
  };
  noun
    .command('list')
    .alias('ls')
    .description(`List ${kind.plural}`)
    .argument('[names...]', `names of the ${kind.plural} to list (default: all)`)
    .addOption(new BooleanFlag('--watch', 'show changes until you press Ctrl+C'))
    .action(async (names: string[], flags: { watch?: boolean }, command: Command) => {
      if (flags.watch !== true) {
        await show(names, flags, command);
        return;
      }
      await watchList(terminal, command.optsWithGlobals<Globals>(), kind, names);
    });
  noun
    .command('get')
    .description(`Show ${kind.plural}`)
    .argument('<names...>', `names of the ${kind.plural}`)
    .action(show);
}

/** Adds the verbs `list`, `get` and `delete`. */
export function addCommonVerbs<T extends KubeObject>(noun: Command, terminal: Terminal, kind: Kind<T>): void {
  addShowVerbs(noun, terminal, kind);
  noun
    .command('delete')
    .description(`Delete ${kind.plural} and wait until they are completely removed`)
    .argument('<names...>', `names of the ${kind.plural}`)
    .addOption(new BooleanFlag('--wait', 'whether to wait for the complete removal (default: true)'))
    .action(async (names: string[], { wait = true }: { wait?: boolean }, command: Command) => {
      await remove(terminal, command.optsWithGlobals<Globals>(), kind, { names, wait });
    });
}

/** Lists the named objects. Without names, lists all objects of the namespace. */
async function list<T extends KubeObject>(
  terminal: Terminal,
  globals: Globals,
  kind: Kind<T>,
  names: readonly string[],
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    if (names.length === 0) {
      const all = await listAll(cluster, kind, signal);
      const none = `There are no ${kind.plural}${placeOf(kind.type, cluster.namespace)}`;
      await print(terminal, globals.output, listingOf(kind, all, none));
      return;
    }
    const { done, rethrow } = await forEachName(
      names,
      async (name) => await findNamed(cluster, kind, name, signal),
    );
    if (done.length > 0) {
      await print(terminal, globals.output, listingOf(kind, done));
    }
    rethrow();
  });
}

/**
 * Returns the objects of the namespace. If the kind is shared, also returns the objects of the default namespace. If both namespaces have
 * an object with the same name, leaves out the object of the default namespace.
 */
async function listAll<T extends KubeObject>(
  { client, namespace }: Cluster,
  { type, isShared }: Kind<T>,
  signal: AbortSignal,
): Promise<readonly T[]> {
  const { items } = await client.list(type, { namespace, signal });
  if (!isShared || namespace === DEFAULT_NAMESPACE) {
    return items;
  }
  const asked = client.list(type, { namespace: DEFAULT_NAMESPACE, signal });
  // A user without rights in the default namespace gets only the objects of the chosen namespace.
  const { items: shared = [] } = (await undefinedIf(isForbidden, asked)) ?? {};
  const own = new Set(items.map(({ metadata }) => metadata.name));
  return [...items, ...shared.filter(({ metadata }) => !own.has(metadata.name))];
}

/**
 * Writes the objects. Then writes an object again each time it changes or is deleted, until the user ends the command. In a format for
 * programs, each change is a list of one object.
 *
 * @throws CommandError or AggregateError when named objects do not exist; ApiError; the signal's reason when the signal aborts.
 */
export async function watchList<T extends KubeObject>(
  terminal: Terminal,
  globals: Globals,
  kind: Kind<T>,
  names: readonly string[],
): Promise<void> {
  const { signal } = terminal;
  const isWanted = ({ metadata }: T) => names.length === 0 || names.includes(metadata.name);
  await withCluster(terminal, globals, async (cluster) => {
    const { client, watches, namespace } = cluster;
    const { type } = kind;
    const { items, resourceVersion } = await client.list(type, { namespace, signal });
    let above = items.filter(isWanted);
    const missing = names.filter((name) => above.every(({ metadata }) => metadata.name !== name));
    // As in kubectl, a name that does not exist is a mistake. The command does not wait until somebody creates the object.
    const { rethrow } = await forEachName(
      missing,
      async (name) => await getNamed(cluster, kind, name, signal),
    );
    rethrow();
    const none = `There are no ${kind.plural}${placeOf(type, namespace)}`;
    await print(terminal, globals.output, listingOf(kind, above, none));
    const isTable = globals.output === 'table' || globals.output === 'wide';
    const following = { client, watches, type, signal };
    for await (const object of followAll<T>(following, { namespace, resourceVersion })) {
      if (!isWanted(object)) {
        continue;
      }
      if (isTable && above.length > 0) {
        terminal.out(lineBelow(listingOf(kind, above), object, globals.output === 'wide'));
      } else {
        await print(terminal, globals.output, listingOf(kind, [object]));
        above = [object];
      }
    }
  });
}

/**
 * Time limit for the wait until an object is deleted, as in the HTTP API. A guest has 30 s to shut down, but a host that does not answer
 * can delay the deletion for much longer.
 */
const LIMIT_MILLISECONDS = 600_000;

interface Removal {
  readonly names: readonly string[];
  /** Whether to wait until the objects are completely removed. */
  readonly wait: boolean;
}

/**
 * Deletes all named objects at the same time.
 *
 * @throws CommandError when an object does not exist, or still exists after the time limit; ApiError.
 */
async function remove<T extends KubeObject>(
  terminal: Terminal,
  globals: Globals,
  kind: Kind<T>,
  { names, wait }: Removal,
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { done: objects, rethrow } = await forEachName(names, async (name) => {
      const object = await getNamed(cluster, kind, name, signal);
      await removeOne(cluster, kind, object, { wait, signal });
      return object;
    });
    const message = wait ? 'Successfully deleted' : 'Requested deletion of';
    await report(terminal, globals, { kind, objects, sentence: (name) => `${message} ${kind.noun} ${name}` });
    rethrow();
  });
}

/**
 * Deletes the object. If `wait` is true, waits until the object is gone. Does not delete a new object that somebody else created with the
 * same name.
 *
 * @throws CommandError when the object still exists after the time limit; ApiError.
 */
async function removeOne<T extends KubeObject>(
  { client, watches, namespace }: Cluster,
  { type, noun }: Kind<T>,
  { metadata: from }: T,
  { wait, signal }: { wait: boolean; signal: AbortSignal },
): Promise<void> {
  await client.delete(type, { namespace, name: from.name }, { uid: from.uid, signal });
  if (!wait) {
    return;
  }
  const late = AbortSignal.timeout(LIMIT_MILLISECONDS);
  const versions = follow({ client, watches, type, from, signal: AbortSignal.any([signal, late]) });
  try {
    while ((await versions.next()).done !== true) {
      // The object still exists.
    }
  } catch (error) {
    throw error === late.reason
      ? new CommandError(`${noun} ${from.name} is still being deleted`, EXIT.noAnswer)
      : error;
  }
}
