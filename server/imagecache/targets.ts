/** Changes the targets of an ImageCacheEntry for single hosts. All functions are pure. */
import { type CacheTargets, isTargeted } from '../../api/v1alpha1/cachetargets.ts';

export interface Host {
  readonly name: string;
  readonly tags: ReadonlySet<string>;
}

/** Adds the host. The result is undefined if a tag of the host excludes it, because that is the wish of an administrator. */
export function withHost(targets: CacheTargets, host: Host): CacheTargets | undefined {
  if (isTargeted(host, targets)) {
    return targets;
  }
  const { nodes = [], excludeNodes = [] } = targets;
  const allowed = { ...targets, excludeNodes: excludeNodes.filter((name) => name !== host.name) };
  const named = isTargeted(host, allowed) ? allowed : { ...allowed, nodes: unique([...nodes, host.name]) };
  return isTargeted(host, named) ? named : undefined;
}

/** Removes the host. A host that the entry also selects by a tag, or with all others, is excluded by name. */
export function withoutHost(targets: CacheTargets, host: Host): CacheTargets {
  if (!isTargeted(host, targets)) {
    return targets;
  }
  const { nodes = [], excludeNodes = [] } = targets;
  const unnamed = { ...targets, nodes: nodes.filter((name) => name !== host.name) };
  return isTargeted(host, unnamed)
    ? { ...unnamed, excludeNodes: unique([...excludeNodes, host.name]) }
    : unnamed;
}

/**
 * Removes names of hosts that do not exist. They are not excluded: a later host of such a name may belong to another namespace, and the list
 * of excluded hosts is limited.
 */
export function withoutNames(targets: CacheTargets, names: ReadonlySet<string>): CacheTargets {
  const { nodes = [] } = targets;
  const kept = nodes.filter((name) => !names.has(name));
  return kept.length === nodes.length ? targets : { ...targets, nodes: kept };
}

/** Returns true if the entry wants the image on no host, now and later. */
export function isEmpty({ all = false, nodes = [], tags = [] }: CacheTargets): boolean {
  return !all && nodes.length === 0 && tags.length === 0;
}

function unique(names: readonly string[]): string[] {
  return [...new Set(names)];
}
