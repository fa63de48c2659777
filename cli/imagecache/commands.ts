/** The verbs of `imagecache`. */
import type { Command } from 'commander';
import { BooleanFlag, parseList } from '../flags.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import type { Selection } from './selection.ts';

export function addImageCacheCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('list')
    .alias('ls')
    .description('List the images on the hosts of the namespace')
    .argument('[images...]', 'images to list (default: all)')
    .action(async (images: string[], _flags, command: Command) => {
      const { list } = await import('./show.ts');
      await list(terminal, command.optsWithGlobals<Globals>(), images);
    });
  noun
    .command('info')
    .description('Show which hosts have an image, are fetching it or are removing it')
    .argument('<image>', 'image of a registry, or an Image of the cluster')
    .action(async (image: string, _flags, command: Command) => {
      const { info } = await import('./show.ts');
      await info(terminal, command.optsWithGlobals<Globals>(), image);
    });
  for (const [action, description] of [
    ['add', 'Make hosts keep an image. The command does not wait for the hosts'],
    [
      'remove',
      'Remove an image from hosts as soon as no VM there needs the image. The command does not wait for the hosts',
    ],
  ] as const) {
    noun
      .command(action)
      .description(description)
      .argument('<image>', 'image of a registry, or an Image of the cluster')
      .option('--nodes <names>', 'names of hosts, with commas between them', parseList)
      .option(
        '--tags <tags>',
        'tags, with commas between them; the command selects the hosts that now have all of these tags',
        parseList,
      )
      .addOption(new BooleanFlag('--all', 'all hosts of the namespace'))
      .action(async (image: string, flags: Selection, command: Command) => {
        const { changeCache } = await import('./change.ts');
        await changeCache(terminal, command.optsWithGlobals<Globals>(), { action, image, flags });
      });
  }
}
