import { Socket } from 'node:dgram';
import { readFile, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest';
import { natLayout } from '../../../test/fixtures/natlayout.ts';
import type { NatLayout } from './layout.ts';
import { Probe } from './probe.ts';
import { makeFolder } from '../../../test/support/folder.ts';

/** Program that the tests use in place of unshare. It runs the command without a network namespace, on a port that the kernel chooses. */
const UNSHARE = `#!/bin/sh
program=$2 option=$3 script=$4
shift 4
exec "$program" "$option" "$script" $(echo "$@" | sed 's/[0-9]*/0/g')
`;
/** Program that ends at once, but leaves a process that sends a socket later. */
const LATE_UNSHARE = `#!/bin/sh
"$2" --eval "
const socket = require('node:dgram').createSocket('udp4');
socket.bind(0, () => process.send(0, socket, () => process.exit()));
" &
exit 1
`;
/** Program that the tests use in place of ip. It adds its input to a file, and fails at one command. */
const IP = `#!/bin/sh
if [ "$1" = -json ]; then echo '[]'; exit; fi
read command
echo "$command" >> "$0.calls"
case "$command" in "$(cat "$0.fails")"*) exit 1;; esac
`;

let root: string;

beforeEach(async () => {
  root = makeFolder();
  await writeFile(join(root, 'unshare'), UNSHARE, { mode: 0o755 });
  await writeFile(join(root, 'ip'), IP, { mode: 0o755 });
  vi.stubEnv('PATH', `${root}${delimiter}${process.env['PATH']}`);
});

afterEach(async () => {
  vi.unstubAllEnvs();
});

function layout(): NatLayout {
  return natLayout({ directory: root, runtimeDirectory: root });
}

function openSockets(): number {
  return process.getActiveResourcesInfo().filter((kind) => kind === 'UDPWrap').length;
}

test('an end of the probe that cannot be configured leaves no socket', async () => {
  await writeFile(join(root, 'ip.fails'), 'link add');
  const before = openSockets();
  await expect(new Probe(layout()).rebuild(new Set())).rejects.toThrow('ip -batch');
  await expect.poll(openSockets).toBe(before);
  expect(await readFile(join(root, 'ip.calls'), 'utf8')).toContain('link add');
});

test('a socket that arrives after the failure is closed', async () => {
  await writeFile(join(root, 'unshare'), LATE_UNSHARE);
  const close = vi.spyOn(Socket.prototype, 'close');
  onTestFinished(() => close.mockRestore());
  const before = openSockets();
  await expect(new Probe(layout()).rebuild(new Set())).rejects.toThrow('ended with code 1');
  await expect.poll(() => close.mock.calls.length).toBeGreaterThan(0);
  await expect.poll(openSockets).toBe(before);
});

test('a device of a former probe that the kernel has deleted meanwhile does not stop the new one', async () => {
  await writeFile(join(root, 'ip.fails'), 'link');
  const { innerPort, outerPort } = layout().probe;
  await expect(new Probe(layout()).rebuild(new Set([innerPort, outerPort]))).rejects.toThrow('ip -batch');
  const calls = (await readFile(join(root, 'ip.calls'), 'utf8')).split('\n');
  expect(calls.slice(0, 2)).toEqual([`link delete ${innerPort}`, `link delete ${outerPort}`]);
  expect(calls[2]).toContain('link add');
});
