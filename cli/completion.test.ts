import { execFileSync } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Command } from 'commander';
import { expect, it } from 'vitest';
import { completionScript } from './completion.ts';
import { createProgram } from './program.ts';

const program = await createProgram(
  {
    name: 'kubectl berth',
    environment: {},
    out: () => undefined,
    err: () => undefined,
    isForPeople: false,
    signal: new AbortController().signal,
  },
  () => true,
);
program.name('berth');

/** Returns the words that bash offers for the last word of the line. */
function offered(...line: string[]): string[] {
  const script = `${completionScript('bash', program)}
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _berth; printf '%s\\n' "\${COMPREPLY[@]}"`;
  return execFileSync('bash', ['-c', script, 'bash', ...line], { encoding: 'utf8' })
    .split('\n')
    .filter(Boolean);
}

it('completes commands, flags and their values in bash', () => {
  expect(offered('berth', 've')).toEqual(['version']);
  expect(offered('berth', 'vm-config', 'd')).toEqual(['delete']);
  expect(offered('berth', 'vm', 'st')).toEqual(['start', 'stop']);
  expect(offered('berth', 'vm', 'deploy', 'mac', '--display-')).toEqual([
    '--display-width',
    '--display-height',
    '--display-dpi',
  ]);
  expect(offered('berth', 'vm', 'list', '-o', '')).toEqual(['table', 'wide', 'json', 'yaml', 'name']);
  expect(offered('berth', 'completion', '')).toEqual(expect.arrayContaining(['bash', 'zsh', 'fish']));
});

it('offers the names that the command lists, and nothing that a shell would run', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-completion-'));
  try {
    const command = join(folder, 'berth');
    const names = ['desk', 'dark.side', 'd$(touch hit)', 'd`touch hit`', 'd*', 'd e', 'd;e'];
    const script = `#!/bin/sh\necho "$@" >>'${folder}/asked'\nprintf '%s\\n' ${names.map((name) => `'${name}'`).join(' ')}\n`;
    await writeFile(command, script, { mode: 0o755 });
    expect(offered(command, '-n', 'lab', 'vm-config', 'get', '--context=x', 'd')).toEqual([
      'desk',
      'dark.side',
    ]);
    expect(offered(command, 'vm', 'ssh', 'd')).toEqual(['desk', 'dark.side']);
    const asked = 'vm-config list -o name -n lab --context=x\nvm list -o name\n';
    expect(await readFile(join(folder, 'asked'), 'utf8')).toBe(asked);
    const others = [
      ['vm', 'save', 'desk', 'd'],
      ['vm', 'create', 'd'],
      ['vm', 'ssh', '--u'],
    ];
    expect(others.flatMap((line) => offered(command, ...line))).toEqual(['--user']);
    expect(await readFile(join(folder, 'asked'), 'utf8')).toBe(asked);
  } finally {
    await rm(folder, { recursive: true });
  }
});

it('completes the plug-in of kubectl with the script of the docs', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-completion-'));
  try {
    const page = await readFile(join(import.meta.dirname, '../docs/how-to/command.md'), 'utf8');
    const [, script = ''] = /```sh\n(#!\/usr\/bin\/env bash[^`]+)```/.exec(page) ?? [];
    await writeFile(join(folder, 'words'), completionScript('bash', program));
    await writeFile(join(folder, 'berth'), `#!/bin/sh\ncat '${folder}/words'\n`, { mode: 0o755 });
    await writeFile(join(folder, 'kubectl_complete-berth'), script, { mode: 0o755 });
    const env = { PATH: `${folder}:${process.env.PATH}` };
    const expected = execFileSync(join(folder, 'kubectl_complete-berth'), ['vm', 'st'], {
      encoding: 'utf8',
      env,
    });
    expect(expected).toBe('start\nstop\n:4\n');
  } finally {
    await rm(folder, { recursive: true });
  }
});

/** Returns the commands and the flags that are shown, each with its place. */
function candidatesOf(command: Command, path = ''): { path: string; word: string; description: string }[] {
  const flags = command.options.filter(({ hidden }) => !hidden);
  return [
    ...flags.map(({ long, description }) => ({ path, word: long ?? '', description })),
    ...command.commands.flatMap((next) => [
      { path, word: next.name(), description: next.description() },
      ...candidatesOf(next, `${path} ${next.name()}`),
    ]),
  ];
}

it('describes each word in zsh and fish', () => {
  const [zsh, fish] = [completionScript('zsh', program), completionScript('fish', program)];
  expect(zsh).toContain(`'stop:Stop VMs. They keep their disk'`);
  expect(fish).toContain(`= " vm"' -a stop -d 'Stop VMs. They keep their disk'`);
  const inQuotes = (text: string) => text.replaceAll("'", String.raw`'\''`);
  for (const { path, word, description } of candidatesOf(program)) {
    expect(zsh).toContain(`'${word}:${inQuotes(description.replaceAll(':', String.raw`\:`))}'`);
    const flag = word.startsWith('--') ? `-l ${word.slice(2)}` : `-a ${word}`;
    expect(fish).toContain(`= "${path}"' ${flag} -d '${inQuotes(description)}'`);
  }
});
