import { chmod, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Dnsmasq } from './dnsmasq.ts';
import { natLayout } from '../../../test/fixtures/natlayout.ts';

/**
 * Program that the tests use in place of dnsmasq. It starts a process with the same arguments that waits at a pipe, and writes the pid of
 * this process. The process adds an empty line to a file for each SIGHUP. The program ends when the process is ready for this signal.
 */
const PROGRAM = `#!/bin/sh
for word; do case "$word" in --pid-file=*) file="\${word#--pid-file=}";; esac; done
mkfifo "$file.pipe" "$file.ready"
sh -c 'trap "echo >> $0.told" HUP; echo > "$0.ready"; while :; do read line <> "$0.pipe"; done' "$file" "$@" > /dev/null 2>&1 &
echo $! > "$file"
read line < "$file.ready"
`;

let root: string;
let directory: string;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'dnsmasq-'));
  directory = join(root, 'run');
  await writeFile(join(root, 'dnsmasq'), PROGRAM);
  await chmod(join(root, 'dnsmasq'), 0o755);
  vi.stubEnv('PATH', `${root}${delimiter}${process.env['PATH']}`);
});

afterEach(async () => {
  await dnsmasqFor([]).stop();
  vi.unstubAllEnvs();
  await rm(root, { recursive: true });
});

function dnsmasqFor(servers: readonly string[]): Dnsmasq {
  const layout = natLayout({ runtimeDirectory: directory });
  return new Dnsmasq(layout, directory, servers);
}

test('a new agent keeps the dnsmasq of an earlier agent only if it has the same arguments', async () => {
  const earlier = dnsmasqFor(['192.0.2.1']);
  await earlier.tell([]);
  await earlier.start();
  const pid = await earlier.pid();
  expect(pid).toBeGreaterThan(0);
  const same = dnsmasqFor(['192.0.2.1']);
  await same.takeOver();
  expect(await same.pid()).toBe(pid);
  const other = dnsmasqFor(['192.0.2.2']);
  await other.takeOver();
  expect(await other.pid()).toBeUndefined();
});

test('a new agent makes the dnsmasq that it keeps read the list of machines again', async () => {
  const earlier = dnsmasqFor([]);
  await earlier.tell([]);
  await earlier.start();
  await dnsmasqFor([]).takeOver();
  await expect.poll(() => readFile(join(directory, 'dnsmasq.pid.told'), 'utf8')).toBe('\n');
});

test('dnsmasq has places for the waiting queries of several guests that send as many as they may', async () => {
  const dnsmasq = dnsmasqFor([]);
  await dnsmasq.tell([]);
  await dnsmasq.start();
  const words = await readFile(`/proc/${await dnsmasq.pid()}/cmdline`, 'utf8');
  expect(words.split('\0')).toContain('--dns-forward-max=20000');
});
