/** Reads which hosts a change of the cache is for. */
import { isOneSelection } from '../../api/http/cachechange.ts';
import { CommandError, EXIT } from '../errors.ts';
import { requireTag } from '../node/tags.ts';

/** Values of the flags. Each name is without spaces at its ends. */
export interface Selection {
  readonly nodes?: string[];
  readonly tags?: string[];
  readonly all?: boolean;
}

/** @throws CommandError when not exactly one flag selects hosts, or when no host can have a tag. */
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
