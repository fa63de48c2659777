/** The verbs of `node`. */
import type { Command } from 'commander';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';

export function addNodeCommands(noun: Command, terminal: Terminal): void {
  const show = async (names: string[], _flags: object, command: Command) => {
    const { list } = await import('./list.ts');
    await list(terminal, command.optsWithGlobals<Globals>(), names);
  };
  noun
    .command('list')
    .alias('ls')
    .description('List the hosts of the namespace')
    .argument('[names...]', 'names of the hosts to list (default: all)')
    .action(show);
  noun.command('get').description('Show hosts').argument('<names...>', 'names of the hosts').action(show);
  for (const [verb, description, isSet] of [
    ['tag', 'Add a tag to a host. A host can have at most 64 tags', true],
    [
      'untag',
      'Remove a tag from a host. If the configuration of the host has the tag, its agent adds the tag again',
      false,
    ],
  ] as const) {
    noun
      .command(verb)
      .description(description)
      .argument('<name>', 'name of the host')
      .argument('<tag>', 'the tag')
      .action(async (name: string, tag: string, _flags, command: Command) => {
        const { changeTag } = await import('./tags.ts');
        await changeTag(terminal, command.optsWithGlobals<Globals>(), { name, tag, isSet });
      });
  }
  noun
    .command('give-up')
    .description(
      'Give up a host that is gone for good, also if its Node was deleted. Its VMs that have run are lost. The command is refused while the host reports',
    )
    .argument('<name>', 'name of the host')
    .action(async (name: string, _flags, command: Command) => {
      const { giveUpHost } = await import('./giveup.ts');
      await giveUpHost(terminal, command.optsWithGlobals<Globals>(), name);
    });
  noun
    .command('namespace')
    .description(
      'Give a host of the namespace to another namespace. The command is refused while a VM runs on the host',
    )
    .argument('<name>', 'name of the host')
    .argument('<target>', 'namespace that receives the host. To return the host, name the default namespace')
    .action(async (name: string, target: string, _flags, command: Command) => {
      const { giveHost } = await import('./namespace.ts');
      await giveHost(terminal, command.optsWithGlobals<Globals>(), { name, target });
    });
}
