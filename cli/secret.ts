/** The noun `secret`: Secrets with user data, the only Secrets that guests may get. */
import type { Command } from 'commander';
import { SECRET_USER_DATA_BYTES, USER_DATA_SECRET_TYPE } from '../api/v1alpha1/names.ts';
import { SECRETS } from '../kube/core.ts';
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
