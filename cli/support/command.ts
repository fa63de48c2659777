/** The command `support-bundle`. */
import type { Command } from 'commander';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';

export function addSupportBundle(program: Command, terminal: Terminal): void {
  program
    .command('support-bundle')
    .description('Write objects, Events, logs and metrics into one archive, without secrets')
    .option('--file <path>', 'new file for the archive (default: berth-support-TIME.tar.gz)')
    .action(async (flags: { file?: string }, command: Command) => {
      const { supportBundle } = await import('./bundle.ts');
      await supportBundle(terminal, command.optsWithGlobals<Globals>(), flags);
    });
}
