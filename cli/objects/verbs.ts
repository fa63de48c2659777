/** The verbs that most nouns have. */
import type { Command } from 'commander';
import type { KubeObject } from '../../kube/objects.ts';
import { BooleanFlag } from '../flags.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import type { Kind } from './kind.ts';

/** Adds the verbs `list` and `get`. */
export function addShowVerbs<T extends KubeObject>(noun: Command, terminal: Terminal, kind: Kind<T>): void {
  const show = async (names: string[], _flags: object, command: Command) => {
    const { list } = await import('./list.ts');
    await list(terminal, command.optsWithGlobals<Globals>(), kind, names);
  };
  noun
    .command('list')
    .alias('ls')
    .description(`List ${kind.plural}`)
    .argument('[names...]', `names of the ${kind.plural} to list (default: all)`)
    .addOption(new BooleanFlag('--watch', 'show changes until you press Ctrl+C'))
    .action(async (names: string[], flags: { watch?: boolean }, command: Command) => {
      if (flags.watch !== true) {
        await show(names, flags, command);
        return;
      }
      const { watchList } = await import('./watch.ts');
      await watchList(terminal, command.optsWithGlobals<Globals>(), kind, names);
    });
  noun
    .command('get')
    .description(`Show ${kind.plural}`)
    .argument('<names...>', `names of the ${kind.plural}`)
    .action(show);
}

/** Adds the verbs `list`, `get` and `delete`. */
export function addCommonVerbs<T extends KubeObject>(noun: Command, terminal: Terminal, kind: Kind<T>): void {
  addShowVerbs(noun, terminal, kind);
  noun
    .command('delete')
    .description(`Delete ${kind.plural} and wait until they are completely removed`)
    .argument('<names...>', `names of the ${kind.plural}`)
    .addOption(new BooleanFlag('--wait', 'whether to wait for the complete removal (default: true)'))
    .action(async (names: string[], { wait = true }: { wait?: boolean }, command: Command) => {
      const { remove } = await import('./remove.ts');
      await remove(terminal, command.optsWithGlobals<Globals>(), kind, { names, wait });
    });
}
