import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Dnsmasq } from './dnsmasq.ts';
import { layoutOf } from './layout.ts';

/**
 * Program that the tests use in place of dnsmasq. It starts a process with the same arguments that waits at a pipe, and writes the pid of
 * this process.
 */
const PROGRAM = `#!/bin/sh
for word; do case "$word" in --pid-file=*) file="\${word#--pid-file=}";; esac; done
mkfifo "$file.pipe"
sh -c 'read line < "$0"' "$file.pipe" "$@" > /dev/null 2>&1 &
echo $! > "$file"
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
  const layout = layoutOf({
    directory: '/nowhere',
    runtimeDirectory: directory,
    bridge: 'berth0',
    table: 'berth',
    subnet: '10.97.0.0/24',
    probeSubnet: '10.97.1.0/24',
    connectionsPerGuest: 1,
    dnsServers: [],
    forbidden: [],
    ports: { reservable: [], denied: [] },
  });
  return new Dnsmasq(layout, directory, servers);
}

test('a new agent keeps the dnsmasq of an earlier agent only if it has the same arguments', async () => {
  const earlier = dnsmasqFor(['192.0.2.1']);
  await earlier.tell([]);
  await earlier.start();
  const pid = await earlier.pid();
  expect(pid).toBeGreaterThan(0);
  const same = dnsmasqFor(['192.0.2.1']);
  await same.stopFormer();
  expect(await same.pid()).toBe(pid);
  const other = dnsmasqFor(['192.0.2.2']);
  await other.stopFormer();
  expect(await other.pid()).toBeUndefined();
});
