/** The verbs of `image` and `iso`. */
import { type Command, Option } from 'commander';
import { diskSizeIn } from '../flags.ts';
import type { Globals } from '../globals.ts';
import { addFileFlag } from '../objects/fileflag.ts';
import { addCommonVerbs } from '../objects/verbs.ts';
import type { Terminal } from '../terminal.ts';
import type { CreateFlags } from './create.ts';
import { IMAGE_KIND, ISO_KIND } from './kind.ts';

export function addImageCommands(noun: Command, terminal: Terminal): void {
  addCommonVerbs(noun, terminal, IMAGE_KIND);
  addCreate(noun, terminal, IMAGE_KIND).option(
    '--size <size>',
    'size of a new empty disk, for example 120G or 100Gi; a number without a unit is in GB',
    diskSizeIn,
  );
}

export function addISOCommands(noun: Command, terminal: Terminal): void {
  addCommonVerbs(noun, terminal, ISO_KIND);
  addCreate(noun, terminal, ISO_KIND);
}

function addCreate(noun: Command, terminal: Terminal, kind: typeof IMAGE_KIND): Command {
  const word = kind.noun === 'image' ? 'image' : 'ISO';
  return addFileFlag(noun.command('create'))
    .description(`Make an ${word}, or all ${word}s that a file describes, and do not wait for their content`)
    .argument('[name]', `name of the ${word}`)
    .option('--copy-of <name>', `copy another ${word}`)
    .option('--reference <reference>', 'take the content from a registry')
    .option('--url <url>', 'take the content from a web server; requires --sha256')
    .option('--sha256 <digest>', 'SHA-256 digest of the file at --url')
    .option('-d, --description <text>', `description of the ${word}`)
    .addOption(new Option('--type <architecture>', 'architecture of the VMs').choices(['arm64', 'amd64']))
    .action(async (name: string | undefined, flags: CreateFlags, command: Command) => {
      const { create } = await import('./create.ts');
      await create(terminal, command.optsWithGlobals<Globals>(), kind, { name, flags });
    });
}
