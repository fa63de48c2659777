/** The flag that names a file with objects. */
import type { Command } from 'commander';
import { CommandError, EXIT } from '../errors.ts';

export interface FileFlag {
  /** Path of the file, or `-` for the standard input. */
  readonly filename?: string;
}

export function addFileFlag(command: Command): Command {
  return command.option(
    '-f, --filename <file>',
    'file with the objects as YAML or JSON; - is the standard input',
  );
}

/**
 * Returns the file if the flags name one. Otherwise the result is undefined.
 *
 * @throws CommandError when the flags name a file, but the command line also contains a name or other flags.
 */
export function fileIn(name: string | undefined, { filename, ...flags }: FileFlag): string | undefined {
  if (filename === undefined) {
    return undefined;
  }
  if (name !== undefined || Object.keys(flags).length > 0) {
    throw new CommandError(
      'Use -f without a name and without other flags. The file must contain all values',
      EXIT.usage,
    );
  }
  return filename;
}
