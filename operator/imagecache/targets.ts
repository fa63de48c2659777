/** The hosts that an entry wants its image on. */
import type { ImageCacheEntrySpec } from '../../api/v1alpha1/imagecacheentry.ts';
import type { Host, Observed } from './observed.ts';

/** None for a duplicate and for an entry that is being deleted. */
export function targetsOf({ entry, duplicateOf, hosts }: Observed): ReadonlySet<string> {
  if (duplicateOf !== undefined || entry.metadata.deletionTimestamp !== undefined) {
    return new Set();
  }
  const targets = entry.spec.targets ?? {};
  const wanted = [...hosts.values()].filter((host) => isTargeted(host, targets));
  return new Set(wanted.map(({ name }) => name));
}

function isTargeted(host: Host, targets: NonNullable<ImageCacheEntrySpec['targets']>): boolean {
  const { all = false, nodes = [], tags = [], excludeNodes = [] } = targets;
  const isNamed = all || nodes.includes(host.name) || tags.some((tag) => host.tags.has(tag));
  return isNamed && !excludeNodes.includes(host.name);
}
