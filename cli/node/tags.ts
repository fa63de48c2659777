/** Adds and removes tags of hosts. */
import { ActionError } from '../../actions/error.ts';
import { changeTag as changeTagOf, type TagChange } from '../../actions/nodes.ts';
import { isTag, TAG_FORM } from '../../api/v1alpha1/names.ts';
import { withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { directOrAsked, namespacePath } from '../httpapi.ts';
import { printDone } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';
import { changingHost, requireHostName } from './hosts.ts';

/** Adds the tag to the host, or removes it. @throws CommandError when the host or the tag is wrong; ApiError. */
export async function changeTag(
  terminal: Terminal,
  globals: Globals,
  { name, tag, isSet }: Pick<TagChange, 'tag' | 'isSet'> & { readonly name: string },
): Promise<void> {
  requireTag('tag', tag);
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    requireHostName(name, namespace);
    await directOrAsked(
      cluster,
      terminal.signal,
      async () =>
        await changingHost(
          cluster,
          name,
          async (access) =>
            await changeTagOf(access, { namespace, host: name, tag, isSet }).catch(withAdvice),
        ),
      async (server) => {
        const path = namespacePath(namespace, 'nodes', name, isSet ? 'tag' : 'untag');
        await server({ method: 'POST', path, body: { tag } });
      },
    );
    const item = { name, tag };
    const words = `Successfully ${isSet ? 'added' : 'removed'} tag ${tag} ${isSet ? 'to' : 'from'} node`;
    await printDone(terminal, globals.output, [item], words);
  });
}

function withAdvice(error: unknown): never {
  throw error instanceof ActionError
    ? new ActionError(error.kind, `${error.message}. First remove a tag with \`berth node untag\``)
    : error;
}

/**
 * Checks whether a host can have the tag. `field` names the argument or flag in the message. @throws CommandError when no host can have the
 * tag.
 */
export function requireTag(field: string, tag: string): void {
  if (!isTag(tag)) {
    throw new CommandError(`The ${field} ${JSON.stringify(printable(tag))} ${TAG_FORM}`, EXIT.usage);
  }
}
