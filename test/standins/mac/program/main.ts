/**
 * Stand-in for macOS on Apple silicon, which a test loads into a process of Node.js before the program (`--import`). The process then says
 * that it runs on macOS as an ordinary user. It notes each file of Linux that the program touches, and each program that it starts, in the
 * file of the variable STANDIN_MAC_NOTES. The kernel stays Linux.
 */
import childProcess from 'node:child_process';
import fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import os from 'node:os';

type Function = (...parameters: unknown[]) => unknown;

const notes = process.env['STANDIN_MAC_NOTES'] ?? '';
/** User id of the first person on a Mac. */
const USER = 501;
const { appendFileSync } = fs;
/** Files and folders of Linux that a Mac does not have. */
const LINUX = /^\/(?:proc|sys|run|dev\/(?:kvm|net)|etc\/(?:os-release|machine-id|subuid|subgid))(?:\/|$)/;
/** Functions of `node:fs` and `node:fs/promises` whose first parameter is a path. */
const READERS = [
  'access',
  'exists',
  'lstat',
  'mkdir',
  'open',
  'opendir',
  'readFile',
  'readdir',
  'readlink',
  'realpath',
  'rm',
  'rmdir',
  'stat',
  'statfs',
  'writeFile',
];

function note(kind: 'file' | 'program', text: string): void {
  appendFileSync(notes, `${kind} ${text}\n`);
}

/** Replaces a function of a module by one that first looks at its first parameter. */
function watch(module: object, name: string, look: (first: unknown) => void): void {
  const functions = module as Record<string, Function>;
  const original = functions[name];
  if (original !== undefined) {
    const watched: Function = (...parameters) => {
      look(parameters[0]);
      return original.apply(module, parameters);
    };
    functions[name] = Object.defineProperties(watched, Object.getOwnPropertyDescriptors(original));
  }
}

function noteFile(path: unknown): void {
  if (typeof path === 'string' && LINUX.test(path)) {
    note('file', path);
  }
}

for (const name of READERS) {
  watch(fs, name, noteFile);
  watch(fs, `${name}Sync`, noteFile);
  watch(fs.promises, name, noteFile);
}
for (const name of ['createReadStream', 'createWriteStream']) {
  watch(fs, name, noteFile);
}
for (const name of ['spawn', 'spawnSync', 'execFile', 'execFileSync', 'fork']) {
  watch(childProcess, name, (program) => note('program', String(program)));
}
Object.defineProperties(process, {
  platform: { value: 'darwin' },
  arch: { value: 'arm64' },
  getuid: { value: () => USER },
  geteuid: { value: () => USER },
});
Object.assign(os, {
  arch: () => 'arm64',
  machine: () => 'arm64',
  platform: () => 'darwin',
  release: () => '25.1.0',
  type: () => 'Darwin',
  userInfo: () => ({ username: 'agent', uid: USER, gid: 20, shell: '/bin/zsh', homedir: '/Users/agent' }),
});
syncBuiltinESMExports();
