import { execFileSync } from 'node:child_process';
import { copyFile, mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { makeFolder } from '../test/support/folder.ts';

const MAKEFILE = join(import.meta.dirname, '..', 'Makefile');
/** Program in place of npm, with output like that of npm. */
const NPM = '#!/bin/sh\nmkdir -p node_modules/.bin\necho "added 300 packages in 9s"\n';

it('make host-token writes only the kubeconfig to its output, also if it installs the packages first', async () => {
  const folder = makeFolder();
  const programs = join(folder, 'programs');
  await Promise.all([programs, join(folder, 'hack')].map(async (path) => await mkdir(path)));
  await Promise.all([
    copyFile(MAKEFILE, join(folder, 'Makefile')),
    writeFile(join(folder, 'package.json'), '{}'),
    writeFile(join(folder, 'package-lock.json'), '{}'),
    writeFile(join(folder, 'hack', 'host-token.ts'), "process.stdout.write('apiVersion: v1\\n');"),
    writeFile(join(programs, 'npm'), NPM, { mode: 0o755 }),
  ]);
  const output = execFileSync('make', ['host-token', 'NAME=rack1-7'], {
    cwd: folder,
    encoding: 'utf8',
    stdio: 'pipe',
    // Without the variables of a surrounding make, which would make this one print its folder.
    env: { PATH: `${programs}:${process.env['PATH']}` },
  });
  expect(output).toBe('apiVersion: v1\n');
});
