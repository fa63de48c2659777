/** Adds single hosts to the targets of an ImageCacheEntry, or removes single hosts from the targets. All functions are pure. */
import type { CacheTargets } from '../api/v1alpha1/cachetargets.ts';
import { CACHE_NODES_LIMIT } from '../api/v1alpha1/names.ts';

export interface CacheHost {
  readonly name: string;
  readonly tags: ReadonlySet<string>;
}

/**
 * Returns the targets with these hosts added. If the targets exclude a tag of a host, this host is not added, and `excluded` contains its
 * name.
 */
export function withHosts(
  targets: CacheTargets,
  hosts: readonly CacheHost[],
): { targets: CacheTargets; excluded: ReadonlySet<string> } {
  const { isWide, isExcluded } = rulesOf(targets);
  const [nodes, excludeNodes] = [new Set(targets.nodes), new Set(targets.excludeNodes)];
  const excluded = new Set(hosts.filter(isExcluded).map(({ name }) => name));
  for (const host of hosts.filter(({ name }) => !excluded.has(name))) {
    excludeNodes.delete(host.name);
    if (!isWide(host)) {
      nodes.add(host.name);
    }
  }
  return { targets: changed(targets, nodes, excludeNodes), excluded };
}

/**
 * Returns the targets without these hosts. If the targets select such a host by a tag or select all hosts, the result excludes the host by
 * its name.
 */
export function withoutHosts(targets: CacheTargets, hosts: readonly CacheHost[]): CacheTargets {
  const { isWide, isExcluded } = rulesOf(targets);
  const [nodes, excludeNodes] = [new Set(targets.nodes), new Set(targets.excludeNodes)];
  for (const host of hosts) {
    nodes.delete(host.name);
    if (isWide(host) && !isExcluded(host)) {
      excludeNodes.add(host.name);
    }
  }
  return changed(targets, nodes, excludeNodes);
}

/**
 * Returns two functions that take a host. `isWide` reports whether the targets select the host by a tag, or select all hosts. `isExcluded`
 * reports whether the targets exclude a tag of the host.
 */
function rulesOf({ all = false, tags = [], excludeTags = [] }: CacheTargets) {
  const [wanted, unwanted] = [new Set(tags), new Set(excludeTags)];
  return {
    isWide: ({ tags: own }: CacheHost) => all || [...own].some((tag) => wanted.has(tag)),
    isExcluded: ({ tags: own }: CacheHost) => [...own].some((tag) => unwanted.has(tag)),
  };
}

/**
 * Returns the targets with the given `nodes` and `excludeNodes`. If both lists are the same as in `targets`, the result is `targets`
 * itself. The function compares only the lengths, because a change either adds names to a list or removes names from it.
 */
function changed(
  targets: CacheTargets,
  nodes: ReadonlySet<string>,
  excludeNodes: ReadonlySet<string>,
): CacheTargets {
  const isSame =
    nodes.size === (targets.nodes ?? []).length && excludeNodes.size === (targets.excludeNodes ?? []).length;
  return isSame ? targets : { ...targets, nodes: [...nodes], excludeNodes: [...excludeNodes] };
}

/**
 * Removes from the targets the names of hosts that do not exist. The function does not add these names to `excludeNodes`, for two reasons.
 * A later host with the same name can belong to another namespace, and the list of excluded hosts has a limit.
 */
export function withoutNames(targets: CacheTargets, names: ReadonlySet<string>): CacheTargets {
  const { nodes = [] } = targets;
  const kept = nodes.filter((name) => !names.has(name));
  return kept.length === nodes.length ? targets : { ...targets, nodes: kept };
}

/**
 * Removes from a list that is longer than allowed the names of hosts that do not exist. Otherwise the list keeps these names, because the
 * Node of a host can be deleted for a moment. Such a host loses its name only if a change happens in that moment.
 */
export function withinLimit(targets: CacheTargets, exists: (name: string) => boolean): CacheTargets {
  const { nodes = [], excludeNodes = [] } = targets;
  const kept = (names: string[]) => (names.length > CACHE_NODES_LIMIT ? names.filter(exists) : names);
  return Math.max(nodes.length, excludeNodes.length) > CACHE_NODES_LIMIT
    ? { ...targets, nodes: kept(nodes), excludeNodes: kept(excludeNodes) }
    : targets;
}

/** Returns true if the targets can never select a host, not even a host that is added later. */
export function isEmpty({ all = false, nodes = [], tags = [] }: CacheTargets): boolean {
  return !all && nodes.length === 0 && tags.length === 0;
}
