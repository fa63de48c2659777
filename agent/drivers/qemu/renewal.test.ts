/** The values that users choose, as a shell in the guest gets them. */
import { execFileSync } from 'node:child_process';
import { expect, it } from 'vitest';
import { assignments } from './renewal.ts';

/** Returns the value that a shell has for the variable. Like in the guest, the shell reads its script from its standard input. */
function readByShell(value: string): string {
  const input = `${assignments({ TIME: '1', VALUE: value })}printf '%s' "$VALUE"\n`;
  return execFileSync('/bin/sh', ['-s'], { input, encoding: 'utf8' });
}

it.each([
  "it's",
  `a "b" c`,
  'first line\nsecond line\n\nlast line',
  '$(echo expanded) `echo expanded` ${TIME} $TIME',
  String.raw`C:\new\0 \' \\ \n`,
  `'; exit 3; '`,
  `''"'"'\\''`,
  "\nEOF\n} </dev/null\nexit 4\n'",
  'ssh-ed25519 AAAA größe 漢字 🙂\r\n\t#!&|<>*?~%s',
  '',
])('the shell gets %j as it is', (value) => {
  expect(readByShell(value)).toBe(value);
});
