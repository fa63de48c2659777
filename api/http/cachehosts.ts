/** Changes the targets of an ImageCacheEntry for single hosts. All functions are pure. */
import type { CacheTargets } from '../v1alpha1/cachetargets.ts';

export interface Host {
  readonly name: string;
  readonly tags: ReadonlySet<string>;
}

/**
 * Returns the targets with these hosts added. `excluded` has the names of hosts that are not added, because an administrator excluded them
 * by a tag.
 */
export function withHosts(
  targets: CacheTargets,
  hosts: readonly Host[],
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
 * Returns the targets without these hosts. If the entry selects a host by a tag, or selects all hosts, the result excludes the host by
 * name.
 */
export function withoutHosts(targets: CacheTargets, hosts: readonly Host[]): CacheTargets {
  const { isWide, isExcluded } = rulesOf(targets);
  const [nodes, excludeNodes] = [new Set(targets.nodes), new Set(targets.excludeNodes)];
  for (const host of hosts) {
    if (!isExcluded(host) && !excludeNodes.has(host.name)) {
      nodes.delete(host.name);
      if (isWide(host)) {
        excludeNodes.add(host.name);
      }
    }
  }
  return changed(targets, nodes, excludeNodes);
}

/** Returns whether the targets select a host without its name, and whether they exclude it by a tag. */
function rulesOf({ all = false, tags = [], excludeTags = [] }: CacheTargets) {
  const [wanted, unwanted] = [new Set(tags), new Set(excludeTags)];
  return {
    isWide: ({ tags: own }: Host) => all || [...own].some((tag) => wanted.has(tag)),
    isExcluded: ({ tags: own }: Host) => [...own].some((tag) => unwanted.has(tag)),
  };
}

/** Returns the targets with these names, or the same targets if the names are the same. A change either adds names to a list or removes some. */
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
 * Removes names of hosts that do not exist. Their names are not excluded. A later host with such a name may belong to another namespace,
 * and the list of excluded hosts has a limit.
 */
export function withoutNames(targets: CacheTargets, names: ReadonlySet<string>): CacheTargets {
  const { nodes = [] } = targets;
  const kept = nodes.filter((name) => !names.has(name));
  return kept.length === nodes.length ? targets : { ...targets, nodes: kept };
}

/** Returns true if the entry can select no host, now or later. */
export function isEmpty({ all = false, nodes = [], tags = [] }: CacheTargets): boolean {
  return !all && nodes.length === 0 && tags.length === 0;
}
