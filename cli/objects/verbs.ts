/** The verbs `list`, `get` and `delete`, which most nouns have. */
import type { Command } from 'commander';
import type { KubeObject } from '../../kube/objects.ts';
import { BooleanFlag, parseSelector } from '../flags.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import { type NounKind, listingOf, type PageLine, report } from './kind.ts';
import { aligned, printable } from '../text.ts';
import { DEFAULT_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { undefinedIf } from '../../base/errors.ts';
import { isForbidden } from '../../kube/errors.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { lineBelow, type Listing, print } from '../output.ts';
import { findNamed, forEachName, getNamed, placeOf } from './named.ts';
import { follow, followAll } from '../../kube/follow.ts';
import { CommandError, EXIT } from '../errors.ts';

/** Which objects a command works with. */
interface Selection {
  readonly names: readonly string[];
  /** Labels of the objects, as in kubectl. */
  readonly selector?: string;
  readonly allNamespaces?: boolean;
}

type ShowFlags = Omit<Selection, 'names'> & { readonly watch?: boolean };

/** Adds the verbs `list` and `get`. */
export function addShowVerbs<T extends KubeObject>(
  noun: Command,
  terminal: Terminal,
  kind: NounKind<T>,
): void {
  const verb = noun
    .command('list')
    .alias('ls')
    .description(`List ${kind.plural}`)
    .argument('[names...]', `names of the ${kind.plural} to list (default: all)`)
    .option(
      '-l, --selector <labels>',
      `list ${kind.plural} with these labels, for example app=ci,stage!=old`,
      parseSelector,
    )
    .addOption(new BooleanFlag('-w, --watch', 'show changes until you press Ctrl+C'))
    .action(async (names: string[], { watch = false, ...flags }: ShowFlags, command: Command) => {
      const selection = checked({ names, ...flags });
      await (watch ? watchList : list)(terminal, command.optsWithGlobals<Globals>(), kind, selection);
    });
  if (kind.type.namespaced) {
    verb.addOption(new BooleanFlag('-A, --all-namespaces', `list ${kind.plural} of all namespaces`));
  }
  noun
    .command('get')
    .description(`Show ${kind.plural}`)
    .argument('<names...>', `names of the ${kind.plural}`)
    .action(async (names: string[], _flags: object, command: Command) => {
      await get(terminal, command.optsWithGlobals<Globals>(), kind, names);
    });
}

/** @throws CommandError when names and a selection of objects are given together. */
function checked(selection: Selection): Selection {
  const { names, selector, allNamespaces = false } = selection;
  if (names.length > 0 && (selector !== undefined || allNamespaces)) {
    throw new CommandError('Give either names, or --selector and --all-namespaces', EXIT.usage);
  }
  return selection;
}

/** Adds the verbs `list`, `get` and `delete`. */
export function addCommonVerbs<T extends KubeObject>(
  noun: Command,
  terminal: Terminal,
  kind: NounKind<T>,
): void {
  addShowVerbs(noun, terminal, kind);
  noun
    .command('delete')
    .description(`Delete ${kind.plural} and wait until they are completely removed`)
    .argument('[names...]', `names of the ${kind.plural}`)
    .addOption(new BooleanFlag('--all', `delete all ${kind.plural} of the namespace`))
    .option(
      '-l, --selector <labels>',
      `delete ${kind.plural} with these labels, for example app=ci`,
      parseSelector,
    )
    .addOption(new BooleanFlag('--wait', 'whether to wait for the complete removal (default: true)'))
    .action(async (names: string[], { wait = true, ...flags }: DeleteFlags, command: Command) => {
      const { all = false, selector } = flags;
      if ([names.length > 0, all, selector !== undefined].filter(Boolean).length !== 1) {
        throw new CommandError('Give one of these: names, --all or --selector', EXIT.usage);
      }
      await remove(terminal, command.optsWithGlobals<Globals>(), kind, { names, ...flags, wait });
    });
}

interface DeleteFlags extends Pick<Selection, 'selector'> {
  readonly all?: boolean;
  readonly wait?: boolean;
}

/** Shows the named objects: as pages for people, if the kind has pages, and otherwise in a list. */
async function get<T extends KubeObject>(
  terminal: Terminal,
  globals: Globals,
  kind: NounKind<T>,
  names: readonly string[],
): Promise<void> {
  const { signal } = terminal;
  const { pageOf } = kind;
  await withCluster(terminal, globals, async (cluster) => {
    const { done, rethrow } = await forEachName(
      names,
      async (name) => await findNamed(cluster, kind, name, signal),
    );
    if (pageOf !== undefined && globals.output === 'table') {
      terminal.out(done.map((object) => formatPage(pageOf(object, terminal.name))).join('\n'));
    } else if (done.length > 0) {
      await print(terminal, globals.output, listingOf(kind, done));
    }
    rethrow();
  });
}

function formatPage(lines: readonly PageLine[]): string {
  const shown = lines.filter(([, value]) => value !== undefined && value !== '');
  return aligned(shown.map(([word, value]) => [`${word}:`, printable(String(value))]));
}

/** Lists the named objects. Without names, lists the selected objects of the namespace, or of all namespaces. */
async function list<T extends KubeObject>(
  terminal: Terminal,
  globals: Globals,
  kind: NounKind<T>,
  selection: Selection,
): Promise<void> {
  const { names } = selection;
  if (names.length > 0) {
    await get(terminal, globals, withoutPage(kind), names);
    return;
  }
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const all = await listAll(cluster, kind, selection, signal);
    await print(terminal, globals.output, listingIn(cluster, kind, selection, all));
  });
}

function withoutPage<T extends KubeObject>({ pageOf: _pageOf, ...kind }: NounKind<T>): NounKind<T> {
  return kind;
}

/** Returns the listing of the objects. Objects of all namespaces are shown with their namespaces. */
function listingIn<T extends KubeObject>(
  { namespace }: UserCluster,
  kind: NounKind<T>,
  { allNamespaces = false, selector }: Selection,
  rows: readonly T[],
): Listing<T> {
  const place = allNamespaces ? ' in any namespace' : placeOf(kind.type, namespace);
  const labels = selector === undefined ? '' : ` with the labels ${selector}`;
  const listing = listingOf(kind, rows, `There are no ${kind.plural}${labels}${place}`);
  if (!allNamespaces) {
    return listing;
  }
  const columns = listing.columns.filter(({ header }) => header !== 'NAMESPACE');
  return {
    ...listing,
    columns: [{ header: 'NAMESPACE', value: ({ metadata }) => metadata.namespace }, ...columns],
    itemOf: (object) => ({ ...kind.itemOf(object), namespace: object.metadata.namespace }),
  };
}

/**
 * Returns the selected objects of the namespace, or of all namespaces. If the kind is shared, also returns the objects of the default
 * namespace. If both namespaces have an object with the same name, leaves out the object of the default namespace.
 */
async function listAll<T extends KubeObject>(
  { client, namespace }: UserCluster,
  { type, isShared }: NounKind<T>,
  { selector: labelSelector, allNamespaces = false }: Selection,
  signal: AbortSignal,
): Promise<readonly T[]> {
  const options = { labelSelector, signal };
  const { items } = await client.list(type, { ...options, ...(allNamespaces ? {} : { namespace }) });
  if (!isShared || allNamespaces || namespace === DEFAULT_NAMESPACE) {
    return items;
  }
  const asked = client.list(type, { ...options, namespace: DEFAULT_NAMESPACE });
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
  kind: NounKind<T>,
  selection: Selection,
): Promise<void> {
  const { signal } = terminal;
  const { names, selector: labelSelector, allNamespaces = false } = selection;
  const isWanted = ({ metadata }: T) => names.length === 0 || names.includes(metadata.name);
  await withCluster(terminal, globals, async (cluster) => {
    const { client, watches } = cluster;
    const { type } = kind;
    const namespace = allNamespaces ? undefined : cluster.namespace;
    const { items, resourceVersion } = await client.list(type, { namespace, labelSelector, signal });
    let above = items.filter(isWanted);
    const missing = names.filter((name) => above.every(({ metadata }) => metadata.name !== name));
    // As in kubectl, a name that does not exist is a mistake. The command does not wait until somebody creates the object.
    const { rethrow } = await forEachName(
      missing,
      async (name) => await getNamed(cluster, kind, name, signal),
    );
    rethrow();
    const listed = (rows: readonly T[]) => listingIn(cluster, kind, selection, rows);
    await print(terminal, globals.output, listed(above));
    const isTable = globals.output === 'table' || globals.output === 'wide';
    const following = { client, watches, type, labelSelector, signal };
    for await (const object of followAll<T>(following, { namespace, resourceVersion })) {
      if (!isWanted(object)) {
        continue;
      }
      if (isTable && above.length > 0) {
        terminal.out(lineBelow(listed(above), object, globals.output === 'wide'));
      } else {
        await print(terminal, globals.output, listed([object]));
        above = [object];
      }
    }
  });
}

/**
 * Time limit for the wait until an object is deleted, without the time that the object asks for, as in the HTTP API. A host that does not
 * answer can delay the deletion for much longer.
 */
const LIMIT_MILLISECONDS = 600_000;

/** Objects to delete: those with the names, or the selected ones of the namespace. */
interface Removal extends Pick<Selection, 'names' | 'selector'> {
  /** Whether to wait until the objects are completely removed. */
  readonly wait: boolean;
}

/**
 * Deletes all named objects at the same time. Without names, deletes the selected objects.
 *
 * @throws CommandError when an object does not exist, or still exists after the time limit; ApiError.
 */
async function remove<T extends KubeObject>(
  terminal: Terminal,
  globals: Globals,
  kind: NounKind<T>,
  removal: Removal,
): Promise<void> {
  const { signal } = terminal;
  const { wait } = removal;
  await withCluster(terminal, globals, async (cluster) => {
    const isSelected = removal.names.length === 0;
    const wanted = isSelected ? await selectedIn(cluster, kind, removal, signal) : removal.names;
    const { done: objects, rethrow } = await forEachName<T, T | string>(wanted, async (one) => {
      const object = typeof one === 'string' ? await getNamed(cluster, kind, one, signal) : one;
      await removeOne(cluster, kind, object, { wait, signal });
      return object;
    });
    const result = wait ? 'Successfully deleted' : 'Requested deletion of';
    const sentence = (name: string) => `${result} ${kind.noun} ${name}`;
    await report(terminal, globals, { kind, objects, sentence, isDone: isSelected || objects.length > 0 });
    if (wanted.length === 0 && (globals.output === 'table' || globals.output === 'wide')) {
      terminal.err(`${listingIn(cluster, kind, removal, []).none}\n`);
    }
    rethrow();
  });
}

/** Returns the selected objects. Objects of the default namespace are selected only in that namespace. */
async function selectedIn<T extends KubeObject>(
  cluster: UserCluster,
  kind: NounKind<T>,
  selection: Removal,
  signal: AbortSignal,
): Promise<readonly T[]> {
  return await listAll(cluster, { ...kind, isShared: false }, selection, signal);
}

/**
 * Deletes the object. If `wait` is true, waits until the object is gone. Does not delete a new object that somebody else created with the
 * same name.
 *
 * @throws CommandError when the object still exists after the time limit; ApiError.
 */
async function removeOne<T extends KubeObject>(
  { client, watches, namespace }: UserCluster,
  { type, noun, graceSeconds }: NounKind<T>,
  object: T,
  { wait, signal }: { wait: boolean; signal: AbortSignal },
): Promise<void> {
  const { metadata: from } = object;
  await client.delete(type, { namespace, name: from.name }, { uid: from.uid, signal });
  if (!wait) {
    return;
  }
  const late = AbortSignal.timeout(LIMIT_MILLISECONDS + (graceSeconds?.(object) ?? 0) * 1_000);
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
