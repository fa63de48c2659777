/** Reads the selection of hosts for a change of the cache. */
import { isOneSelection } from '../../api/http/cachechange.ts';
import { CommandError, EXIT } from '../errors.ts';
import { requireTag } from '../node.ts';

/** Flags that select hosts. */
export interface Selection {
  readonly nodes?: string[];
  readonly tags?: string[];
  readonly all?: boolean;
}

/**
 * Returns the selection. Removes spaces at the start and the end of the names.
 *
 * @throws CommandError when no flag or more than one flag selects hosts, or when a tag has a wrong form.
 */
export function selectionIn(flags: Selection): Selection {
  if (!isOneSelection(flags)) {
    throw new CommandError('Choose the hosts with exactly one of --nodes, --tags and --all', EXIT.usage);
  }
  const trimmed = (names: readonly string[] = []) => names.map((name) => name.trim());
  const [nodes, tags] = [trimmed(flags.nodes), trimmed(flags.tags)];
  for (const tag of tags) {
    requireTag('value of --tags', tag);
  }
  if (nodes.length > 0) {
    return { nodes };
  }
  return tags.length > 0 ? { tags } : { all: true };
}
