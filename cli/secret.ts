/** The noun `secret`: Secrets with user data, the only Secrets that guests may get. */
import type { Command } from 'commander';
import { isObjectName, SECRET_USER_DATA_BYTES, USER_DATA_SECRET_TYPE } from '../api/v1alpha1/names.ts';
import { undefinedIf } from '../base/errors.ts';
import { deleteExisting } from '../kube/client.ts';
import { SECRETS } from '../kube/core.ts';
import { isForbidden, isNotFound, unlessMissing } from '../kube/errors.ts';
import { CommandError, EXIT } from './errors.ts';
import { forEachName } from './objects/named.ts';
import { printable } from './text.ts';
import { withCluster } from './cluster.ts';
import type { Globals } from './globals.ts';
import { readTextFile, USER_DATA_KEY } from './objects/machineflags.ts';
import { printDone } from './output.ts';
import type { Terminal } from './terminal.ts';

export function addSecretCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('create')
    .description(
      `Make a Secret of type ${USER_DATA_SECRET_TYPE} from a file, for the flag --user-data-secret of VMs`,
    )
    .argument('<name>', 'name of the Secret')
    .requiredOption('--from-file <file>', 'file with the data for the first boot of guests', (file) =>
      readTextFile(file, SECRET_USER_DATA_BYTES),
    )
    .option('--key <key>', 'key of the entry in the Secret', USER_DATA_KEY)
    .action(async (name: string, flags: SecretFlags, command: Command) => {
      await create(terminal, command.optsWithGlobals<Globals>(), { name, ...flags });
    });
  noun
    .command('delete')
    .description('Delete Secrets with data for the first boot of guests')
    .argument('<names...>', 'names of the Secrets')
    .action(async (names: string[], _flags: object, command: Command) => {
      await remove(terminal, command.optsWithGlobals<Globals>(), names);
    });
}

/**
 * Deletes the Secrets. A Secret of another type is refused if the user may read it. Members with the role admin may delete Secrets, but not
 * read them.
 *
 * @throws CommandError when a Secret does not exist, or has another type; ApiError.
 */
async function remove(terminal: Terminal, globals: Globals, names: readonly string[]): Promise<void> {
  await withCluster(terminal, globals, async ({ client, namespace }) => {
    const { signal } = terminal;
    const { done, rethrow } = await forEachName(names, async (name) => {
      if (!isObjectName(name)) {
        throw secretNotFound(name, namespace);
      }
      const found = await undefinedIf(
        isForbidden,
        unlessMissing(client.get(SECRETS, { namespace, name }, { signal })),
      );
      if (found !== undefined && found.type !== USER_DATA_SECRET_TYPE) {
        throw new CommandError(
          `secret ${name} has the type ${printable(found.type ?? 'Opaque')}. This command deletes only Secrets of type ${USER_DATA_SECRET_TYPE}`,
        );
      }
      await deleteExisting(client, SECRETS, { namespace, name }).catch((error: unknown) => {
        throw isNotFound(error) ? secretNotFound(name, namespace) : error;
      });
      return { name };
    });
    await printDone(terminal, globals.output, done, 'Successfully deleted secret');
    rethrow();
  });
}

function secretNotFound(name: string, namespace: string): CommandError {
  return new CommandError(
    `secret ${JSON.stringify(printable(name))} not found in namespace ${namespace}`,
    EXIT.notFound,
  );
}

interface SecretFlags {
  /** Content of the file. */
  readonly fromFile: string;
  readonly key: string;
}

/** Creates the Secret. @throws ApiError, for example when the Secret exists. */
async function create(
  terminal: Terminal,
  globals: Globals,
  { name, fromFile, key }: SecretFlags & { readonly name: string },
): Promise<void> {
  await withCluster(terminal, globals, async ({ client, namespace }) => {
    const { signal } = terminal;
    const secret = { type: USER_DATA_SECRET_TYPE, data: { [key]: Buffer.from(fromFile).toString('base64') } };
    await client.create(SECRETS, { metadata: { namespace, name }, ...secret }, { signal });
    await printDone(terminal, globals.output, [{ name }], 'Successfully created secret');
  });
}
