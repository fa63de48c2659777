/** Plans changes of the tags of a host, for the HTTP API and the `berth` command. */
import { TAG_LABEL_PREFIX } from '../v1alpha1/names.ts';
import { type HostNode, tagsOf } from './host.ts';

/**
 * Largest number of tags of a host. There is a limit, because every list of hosts shows the tags, and all watches of Nodes transfer them.
 */
const TAGS = 64;

export interface TagChange {
  readonly tag: string;
  /** True to add the tag, false to remove it. */
  readonly isSet: boolean;
}

/** Returns the labels to write, or the reason why the host does not get the tag. A label with the value null is removed. */
export function tagLabels(
  host: HostNode,
  { tag, isSet }: TagChange,
): { labels: Record<string, string | null> } | { refusal: string } {
  const tags = tagsOf(host);
  return isSet && tags.length >= TAGS && !tags.includes(tag)
    ? { refusal: `Host ${host.metadata.name} has ${tags.length} tags. At most ${TAGS} tags are allowed` }
    : { labels: { [TAG_LABEL_PREFIX + tag]: isSet ? '' : null } };
}
