import { spawn } from 'node:child_process';
import { chmod, readFile, rm, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest';
import { identify, isAlive, killByArgument } from '../../processes/process.ts';
import type { Attachment } from './attachments.ts';
import { Dnsmasq } from './dnsmasq.ts';
import { natLayout } from '../../../test/fixtures/natlayout.ts';
import { makeFolder } from '../../../test/support/folder.ts';

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
  root = makeFolder();
  directory = join(root, 'run');
  await writeFile(join(root, 'dnsmasq'), PROGRAM);
  await chmod(join(root, 'dnsmasq'), 0o755);
  vi.stubEnv('PATH', `${root}${delimiter}${process.env['PATH']}`);
});

afterEach(async () => {
  await dnsmasqFor([]).stop();
  await killByArgument(`--pid-file=${join(directory, 'dnsmasq.pid')}`);
  vi.unstubAllEnvs();
});

function dnsmasqFor(servers: readonly string[], resolvConf?: string): Dnsmasq {
  const layout = natLayout({ runtimeDirectory: directory });
  return new Dnsmasq(layout, directory, { servers, resolvConf });
}

async function argumentsOf(dnsmasq: Dnsmasq): Promise<string[]> {
  return (await readFile(`/proc/${await dnsmasq.pid()}/cmdline`, 'utf8')).split('\0');
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

/** The process still has its ports, so a second dnsmasq could not start. */
test('a start ends a dnsmasq whose pid file and folder somebody has removed', async () => {
  const dnsmasq = dnsmasqFor([]);
  await dnsmasq.tell([]);
  await dnsmasq.start();
  const earlier = await identify((await dnsmasq.pid()) ?? 0);
  await rm(directory, { recursive: true });
  expect(await dnsmasq.pid()).toBeUndefined();
  await dnsmasq.tell([]);
  await dnsmasq.start();
  expect(earlier !== undefined && (await isAlive(earlier))).toBe(false);
  expect(await dnsmasq.pid()).toBeGreaterThan(0);
});

/** While dnsmasq has the lease of a machine that is gone, it gives the address to no other machine. */
test('dnsmasq forgets its leases when an address belongs to another machine, and only then', async () => {
  const machine = (macAddress: string, address: string): Attachment => ({
    uid: macAddress,
    tap: macAddress,
    ports: [],
    macAddress,
    address,
  });
  const first = machine('02:00:00:00:00:01', '10.213.0.16');
  const second = machine('02:00:00:00:00:02', '10.213.0.17');
  const dnsmasq = dnsmasqFor([]);
  await dnsmasq.tell([first]);
  await dnsmasq.start();
  const pid = await dnsmasq.pid();
  await dnsmasq.tell([first, second]);
  await dnsmasq.tell([second]);
  await dnsmasq.tell([second, first]);
  expect(await dnsmasq.pid()).toBe(pid);
  await dnsmasq.tell([second]);
  await dnsmasq.tell([second, machine('02:00:00:00:00:03', first.address)]);
  const restarted = await dnsmasq.pid();
  expect(restarted).not.toBe(pid);
  expect(restarted).toBeGreaterThan(0);
  // The next agent does not know which leases dnsmasq has.
  await dnsmasqFor([]).tell([second]);
  expect(await dnsmasq.pid()).not.toBe(restarted);
});

test('dnsmasq has places for the waiting queries of several guests that send as many as they may', async () => {
  const dnsmasq = dnsmasqFor([]);
  await dnsmasq.tell([]);
  await dnsmasq.start();
  expect(await argumentsOf(dnsmasq)).toContain('--dns-forward-max=20000');
});

test('guests choose no names of the DNS server that all guests of the host use', async () => {
  const dnsmasq = dnsmasqFor([]);
  await dnsmasq.tell([]);
  await dnsmasq.start();
  expect(await argumentsOf(dnsmasq)).toContain('--dhcp-ignore-names');
});

/** The resolv.conf in a container names the DNS server of the cluster, which knows the names of all Services. */
test('dnsmasq in a container asks the DNS servers of the host, also when they change', async () => {
  const host = join(root, 'host-resolv.conf');
  await writeFile(host, 'nameserver 192.0.2.1\n');
  const dnsmasq = dnsmasqFor([], host);
  expect(await dnsmasq.knows([])).toBe(false);
  await dnsmasq.tell([]);
  await dnsmasq.start();
  const copy = join(directory, 'resolv.conf');
  expect(await argumentsOf(dnsmasq)).toContain(`--resolv-file=${copy}`);
  expect(await readFile(copy, 'utf8')).toBe('nameserver 192.0.2.1\n');
  expect(await dnsmasq.knows([])).toBe(true);
  await writeFile(host, 'nameserver 192.0.2.2\n');
  expect(await dnsmasq.knows([])).toBe(false);
  await dnsmasq.tell([]);
  expect(await readFile(copy, 'utf8')).toBe('nameserver 192.0.2.2\n');
  await rm(host);
  expect(await dnsmasq.knows([])).toBe(false);
  await dnsmasq.tell([]);
  expect(await dnsmasq.knows([])).toBe(true);
});

test('dnsmasq does not read a resolv.conf if the configuration names DNS servers', async () => {
  const dnsmasq = dnsmasqFor(['192.0.2.1'], join(root, 'host-resolv.conf'));
  await dnsmasq.tell([]);
  await dnsmasq.start();
  const args = await argumentsOf(dnsmasq);
  expect(args).toEqual(expect.arrayContaining(['--no-resolv', '--server=192.0.2.1']));
  expect(args.join(' ')).not.toContain('--resolv-file');
});

/** For each DNS connection over TCP, dnsmasq has a child with the same arguments. The child keeps the ports if its parent is killed. */
test('a start also ends the children of a lost dnsmasq', async () => {
  const dnsmasq = dnsmasqFor([]);
  await dnsmasq.tell([]);
  await dnsmasq.start();
  const first = await identify((await dnsmasq.pid()) ?? 0);
  await rm(directory, { recursive: true });
  await dnsmasq.tell([]);
  const argument = `--pid-file=${join(directory, 'dnsmasq.pid')}`;
  const child = spawn(process.execPath, ['-e', 'setInterval(() => 0, 1000)', '--', argument]);
  onTestFinished(() => void child.kill('SIGKILL'));
  const second = await identify(child.pid ?? 0);
  await dnsmasq.start();
  expect([await isAlive(first!), await isAlive(second!)]).toEqual([false, false]);
  expect(await dnsmasq.pid()).toBeGreaterThan(0);
});
