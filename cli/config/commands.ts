/** The verbs of `config`. */
import { type Command, InvalidArgumentError } from 'commander';
import type { Globals } from '../globals.ts';
import { API_URL_FORM, apiURLIn } from './settingsfile.ts';
import type { Terminal } from '../terminal.ts';

export function addConfigCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('set')
    .description(
      'Change settings. If the settings file does not exist, the command creates the file and its folders',
    )
    .requiredOption(
      '--api-url <url>',
      'address of the HTTP API, for example https://berth.example',
      addressIn,
    )
    .action(async ({ apiUrl }: { apiUrl: string }, command: Command) => {
      const { change } = await import('./settings.ts');
      await change(terminal, command.optsWithGlobals<Globals>(), apiUrl);
    });
  noun
    .command('view')
    .description('Show the settings')
    .action(async (_options, command: Command) => {
      const { view } = await import('./settings.ts');
      await view(terminal, command.optsWithGlobals<Globals>());
    });
}

function addressIn(text: string): string {
  const address = apiURLIn(text);
  if (address === undefined) {
    throw new InvalidArgumentError(`It ${API_URL_FORM}.`);
  }
  return address;
}
