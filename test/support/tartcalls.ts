/** Compares the calls of the program `tart` with the table of commands and options on the page about the tests of Apple hosts. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const PAGE = join(import.meta.dirname, '../../docs/develop/apple-hosts.md');

/** Returns the commands and options of the table, each as `COMMAND` or `COMMAND OPTION`. */
export function listedCalls(): Set<string> {
  const [, table = ''] =
    /^## Commands that the driver uses\n(.*?)^## /ms.exec(readFileSync(PAGE, 'utf8')) ?? [];
  const rows = table.split('\n').filter((line) => line.startsWith('| `'));
  return new Set(
    rows.flatMap((row) => {
      const [, names = '', options = ''] = row.split('|');
      const command = /`([\w-]+)/.exec(names)?.[1] ?? '';
      return [command, ...[...options.matchAll(/`(--[\w-]+)/g)].map(([, option]) => `${command} ${option}`)];
    }),
  );
}

/** Returns the commands and options of calls, in the form of {@link listedCalls}. */
export function usedCalls(calls: readonly (readonly string[])[]): Set<string> {
  return new Set(
    calls.flatMap(([command = '', ...rest]) => [
      command,
      ...rest.filter((part) => part.startsWith('--')).map((option) => `${command} ${option}`),
    ]),
  );
}

/** Returns those commands and options of calls that the table does not have. */
export function unlistedCalls(calls: readonly (readonly string[])[]): string[] {
  const listed = listedCalls();
  return [...usedCalls(calls)].filter((call) => !listed.has(call));
}
