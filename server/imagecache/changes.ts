/** Adds an image to hosts, and removes it from hosts. The result has one item for each host. */
import type { CacheResult, CacheSelection } from '../../api/http/imagecache.ts';
import { hostNotFound, type Hosts, tagsOf } from '../own/hosts.ts';
import type { CachedSource, Entries } from './entries.ts';
import { selectedHosts } from './selection.ts';
import { type Host, withHosts, withoutHosts, withoutNames } from './targets.ts';

type Item = CacheResult['items'][number];

export interface Change {
  readonly source: CachedSource;
  readonly namespace: string;
  readonly selection: CacheSelection;
}

/** Lets the selected hosts keep the image. The work is queued. */
export async function addToHosts(entries: Entries, hosts: Hosts, change: Change): Promise<CacheResult> {
  const { known, missing, own } = split(hosts, change);
  let excluded: ReadonlySet<string> = new Set();
  await entries.change(change.source, own, (before) => {
    const after = withHosts(before, known);
    ({ excluded } = after);
    return after.targets;
  });
  const itemOf = ({ name }: Host): Item =>
    excluded.has(name) ? failed(name, 409, 'A tag of the host excludes it from this image') : done(name);
  return result([...known.map(itemOf), ...missing.map((name) => notFound(name))]);
}

/** Lets the selected hosts remove the image. The work is queued, and a host without the image needs none. */
export async function removeFromHosts(entries: Entries, hosts: Hosts, change: Change): Promise<CacheResult> {
  const { known, missing, own } = split(hosts, change);
  const gone = new Set(missing.filter((name) => !hosts.exists(name)));
  await entries.change(change.source, own, (before) => withoutHosts(withoutNames(before, gone), known));
  const strangers = missing.filter((name) => !gone.has(name));
  const leaving = [...known.map(({ name }) => name), ...gone];
  return result([...leaving.map((name) => done(name)), ...strangers.map((name) => notFound(name))]);
}

/** Separates the selected hosts of the namespace from other names. `own` has the names of all hosts of the namespace. */
function split(
  hosts: Hosts,
  { namespace, selection }: Change,
): { known: Host[]; missing: string[]; own: ReadonlySet<string> } {
  const all = hosts.of(namespace);
  const selected = new Set(selectedHosts(selection, all));
  const known = all
    .filter(({ metadata }) => selected.delete(metadata.name))
    .map((node) => ({ name: node.metadata.name, tags: new Set(tagsOf(node)) }));
  return { known, missing: [...selected], own: new Set(all.map(({ metadata }) => metadata.name)) };
}

function result(items: readonly Item[]): CacheResult {
  return { items: items.toSorted((a, b) => (a.node < b.node ? -1 : 1)) };
}

function done(node: string): Item {
  return { node, code: 200, status: 'Success' };
}

function notFound(node: string): Item {
  return failed(node, 404, hostNotFound(node).message);
}

function failed(node: string, code: number, message: string): Item {
  return { node, code, status: 'Failure', message };
}
