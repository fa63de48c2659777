/** Machines of the driver tart, with the stand-in for that program. Nothing here ran with the real program. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer } from 'node:net';
import { dirname, join } from 'node:path';
import { text } from 'node:stream/consumers';
import { inflateSync } from 'node:zlib';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { BaseImage } from '../../../agent/disks/disk.ts';
import type { Machine } from '../../../api/v1alpha1/machine.ts';
import type { MachineFolder, VmLaunchPlan } from '../../../agent/drivers/driver.ts';
import { OUTPUT_LIMIT_BYTES } from '../../../agent/drivers/guest.ts';
import { homeOf } from '../../../agent/drivers/tart/driver.ts';
import { environment } from '../../../agent/drivers/tart/program.ts';
import { findByArgument, type ProcessIdentity } from '../../../agent/processes/process.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { SCREEN } from '../../standins/tart/program/screen.ts';
import { unlistedCalls } from '../../support/tartcalls.ts';
import { Viewer } from '../../wires/rfb.ts';
import { makeSoftnetProgram, TartHost, tartPlan } from '../../worlds/tarthost.ts';

const IMAGE = { type: 'ipsw', url: 'https://images.example/restore.ipsw', sha256: '0' } as const;
/** Limit of a wait. The default, 1 s, is too short on a busy machine, on which a program starts slowly. */
const WAIT = { timeout: 30_000 };
/** ECID of the images of these tests. */
const OF_IMAGE = 'ZWNpZA==';

let host: TartHost;

beforeEach(() => {
  host = new TartHost();
});

afterEach(async () => {
  const unlisted = unlistedCalls(host.tart.calls);
  await host[Symbol.asyncDispose]();
  expect(unlisted).toEqual([]);
});

function configOf(name: string): { ecid?: string; macAddress?: string; os?: string } {
  return JSON.parse(readFileSync(join(dirname(host.disk(name)), 'config.json'), 'utf8')) as object;
}

async function identityOf(name: string): Promise<unknown> {
  const state = await host.driver.inspect(host.folder(name));
  return state.kind === 'running' ? state.identity : undefined;
}

test('shows the screen to clients without a password, which is in no log, no state and no arguments, also under the next agent', async () => {
  const plan = tartPlan('mac1', 'MacOS', { vnc: { enabled: true } });
  const folder = host.folder('mac1');
  await host.driver.create(folder, plan, host.images.darwin);
  await host.driver.start(folder, plan);
  const first = await Viewer.open(await host.driver.connectScreen(folder));
  expect(await first.frame()).toMatchObject(SCREEN);
  const secret = readFileSync(join(folder.path, 'screen.secret'), 'latin1');
  const [, password = ''] = /^vnc:\/\/:(.+)@127/.exec(secret) ?? [];
  expect(password.length).toBeGreaterThan(8);
  expect(statSync(join(folder.path, 'screen.secret')).mode & 0o777).toBe(0o600);
  const others = readdirSync(folder.path).filter((name) => name.endsWith('.log') || name.endsWith('.json'));
  const texts = others.map((name) => readFileSync(join(folder.path, name), 'latin1')).join('\n');
  expect(texts).toContain('VNC server is running at (hidden)');
  expect(texts + JSON.stringify(host.tart.calls)).not.toContain(password);
  await host.restartAgent();
  const second = await Viewer.open(await host.driver.connectScreen(folder));
  expect(await second.frame()).toMatchObject(SCREEN);
  second.close();
  first.close();
  await host.driver.suspend(folder);
  await host.driver.resume(folder, plan);
  const third = await Viewer.open(await host.driver.connectScreen(folder));
  expect(await third.frame()).toMatchObject(SCREEN);
  expect(readFileSync(join(folder.path, 'screen.secret'), 'latin1')).not.toBe(secret);
  await host.driver.stop(folder, { graceMilliseconds: 0 });
  await expect(host.driver.connectScreen(folder)).rejects.toThrow('The machine is not running');
  expect(existsSync(join(folder.path, 'screen.secret'))).toBe(false);
});

test('makes a picture of the screen, one at a time, and only if there is memory for it', async () => {
  const plan = tartPlan('mac1', 'MacOS', { vnc: { enabled: true } });
  const folder = host.folder('mac1');
  await host.driver.create(folder, plan, host.images.darwin);
  await host.driver.start(folder, plan);
  const png = await host.driver.screenshot(folder, () => true);
  expect(png.subarray(0, 8).toString('latin1')).toBe('\u0089PNG\r\n\u001a\n');
  expect([png.readUInt32BE(16), png.readUInt32BE(20)]).toEqual([SCREEN.width, SCREEN.height]);
  const lines = inflateSync(png.subarray(41, 41 + png.readUInt32BE(33)));
  expect(lines).toHaveLength(SCREEN.height * (1 + 3 * SCREEN.width));
  expect([...lines.subarray(-3)]).toEqual([0, 0, SCREEN.height - 1]);
  await expect(host.driver.screenshot(folder, () => false)).rejects.toThrow('has no memory now');
  const both = [1, 2].map(async () => await host.driver.screenshot(folder, () => true));
  const outcomes = await Promise.allSettled(both);
  expect(outcomes.map(({ status }) => status).toSorted()).toEqual(['fulfilled', 'rejected']);
});

test('says why a machine has no screen: its VM wants none, or its host serves none', async () => {
  for (const name of ['mac1', 'mac2'] as const) {
    const plan = tartPlan(name, 'MacOS', { vnc: { enabled: name === 'mac2' } });
    host.screens = name === 'mac1';
    await host.restartAgent();
    await host.driver.create(host.folder(name), plan, host.images.darwin);
    await host.driver.start(host.folder(name), plan);
    const why = name === 'mac1' ? 'Set vnc.enabled to true' : 'ask for machines.screens';
    await expect(host.driver.connectScreen(host.folder(name))).rejects.toThrow(why);
    await expect(host.driver.screenshot(host.folder(name), () => true)).rejects.toThrow(why);
  }
  expect(host.tart.calls.flat()).not.toContain('--vnc-experimental');
});

const NEVER = new AbortController().signal;

/** Starts a machine. `hasAgent` tells whether its guest has a guest agent. */
async function started(
  name: string,
  os: 'MacOS' | 'Linux',
  hasAgent: boolean,
  change: Partial<Machine> = {},
): Promise<MachineFolder> {
  const folder = host.folder(name);
  if (hasAgent) {
    host.tart.give('guest-agent');
  } else {
    host.tart.take('guest-agent');
  }
  const plan = tartPlan(name, os, change);
  await host.driver.create(folder, plan, os === 'MacOS' ? host.images.darwin : host.images.linux);
  await host.driver.start(folder, plan);
  await expect.poll(() => existsSync(host.tart.controlSocket(`berth-${name}`)), WAIT).toBe(hasAgent);
  return folder;
}

/** Runs a command in a guest, and returns its output as text. */
async function output(folder: MachineFolder, line: string, input?: string): Promise<unknown> {
  const [path = '', ...parameters] = line.split(' ');
  const command = { path, arguments: parameters, ...(input !== undefined && { input: Buffer.from(input) }) };
  const result = await host.driver.execute(folder, { ...command, reserve: () => true, signal: NEVER });
  const [stdout, stderr] = [result.stdout, result.stderr].map((pieces) => Buffer.concat(pieces).toString());
  return { ...result, stdout, stderr };
}

test('asks the guest agent of the image for facts, and runs commands by it', async () => {
  const mac = await started('mac1', 'MacOS', true);
  const linux = await started('linux1', 'Linux', true);
  const asked = { facts: true, signal: NEVER };
  const addresses = ['192.168.64.7'];
  const hostName = 'macs-virtual-machine.local';
  expect(await host.driver.askGuest(mac, asked)).toEqual({
    kind: 'answers',
    facts: { addresses, hostName, os: 'macOS 15.1' },
  });
  expect(await host.driver.askGuest(linux, asked)).toEqual({
    kind: 'answers',
    facts: { addresses, hostName, os: 'Debian GNU/Linux 13 (trixie)' },
  });
  expect(await host.driver.askGuest(mac, { ...asked, facts: false })).toEqual({
    kind: 'answers',
    facts: undefined,
  });
  expect(await output(mac, 'fails')).toEqual({
    exitCode: 3,
    stdout: 'said\n',
    stderr: 'complained\n',
    truncated: false,
  });
  const long = 'x'.repeat(2 ** 20);
  expect(await output(mac, 'cat', long)).toMatchObject({ exitCode: 0, stdout: long, truncated: false });
  expect(await output(mac, 'cat', '')).toMatchObject({ exitCode: 0, stdout: '' });
  expect(await output(mac, 'killed')).toMatchObject({ exitCode: 255 });
  const flood = (await output(mac, 'flood')) as { stdout: string; truncated: boolean };
  expect([flood.stdout.length, flood.truncated]).toEqual([OUTPUT_LIMIT_BYTES, true]);
  await expect(output(mac, 'no-such-program')).rejects.toThrow('executable file not found');
  await expect(output(mac, 'cat', 'x'.repeat(2 ** 20 + 1))).rejects.toThrow('longer than 1048576 bytes');
  const over = new AbortController();
  const sleeping = { path: 'sleep', arguments: [], reserve: () => true, signal: over.signal };
  const asleep = host.driver.execute(mac, sleeping);
  over.abort(new Error('not wanted'));
  await expect(asleep).rejects.toThrow('not wanted');
});

test('shuts a guest with macOS down by its guest agent, and tells a guest without one from it', async () => {
  const mac = await started('mac1', 'MacOS', true);
  await host.driver.stop(mac, { graceMilliseconds: 60_000 });
  expect(readFileSync(join(mac.path, 'serial.0.log'), 'utf8')).toContain('guest has stopped');
  expect(await host.driver.inspect(mac)).toEqual({ kind: 'stopped' });
  await expect(output(mac, 'hostname')).rejects.toThrow('The machine is not running');
  const other = await started('mac2', 'MacOS', false);
  expect(await host.driver.askGuest(other, { facts: true, signal: NEVER })).toEqual({ kind: 'silent' });
  await expect(output(other, 'hostname')).rejects.toThrow('Install tart-guest-agent there');
});

const KEYS = ['ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA me@desk', 'ssh-rsa AAAAB3NzaC1yc2E you@desk'];

async function keysOf(folder: MachineFolder): Promise<unknown> {
  const state = await host.driver.inspect(folder);
  return state.kind === 'running' ? state.keys : undefined;
}

test('gives the SSH keys of its VM to a guest with macOS by its guest agent, beside those that the guest has', async () => {
  const folder = await started('mac1', 'MacOS', true, { sshAuthorizedKeys: KEYS });
  expect(await keysOf(folder)).toMatchObject({
    ready: false,
    reason: 'KeysNotGiven',
    message: expect.stringContaining('No guest agent has answered') as string,
  });
  const file = join(host.tart.guestHome('berth-mac1'), '.ssh', 'authorized_keys');
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, `ssh-ed25519 OF-THE-IMAGE\n${KEYS[1]}`);
  const changed: string[] = [];
  host.driver.onChange((uid) => changed.push(uid));
  expect(await host.driver.askGuest(folder, { facts: false, signal: NEVER })).toMatchObject({
    kind: 'answers',
  });
  expect(changed).toEqual(['mac1']);
  expect(readFileSync(file, 'utf8')).toBe(`ssh-ed25519 OF-THE-IMAGE\n${KEYS[1]}\n${KEYS[0]}\n`);
  expect([statSync(file).mode & 0o777, statSync(dirname(file)).mode & 0o777]).toEqual([0o600, 0o700]);
  const message = 'The user admin accepts the SSH keys of the VM. Root does not';
  expect(await keysOf(folder)).toEqual({ ready: true, reason: 'KeysGiven', message });
  await host.restartAgent();
  expect(await keysOf(folder)).toMatchObject({ reason: 'KeysGiven' });
});

test('says that a guest with macOS has not got its keys, and leaves those of a guest with Linux to its seed', async () => {
  const silent = await started('mac1', 'MacOS', false, { sshAuthorizedKeys: KEYS });
  await host.driver.askGuest(silent, { facts: false, signal: NEVER });
  expect(await keysOf(silent)).toMatchObject({
    reason: 'KeysNotGiven',
    message: expect.stringContaining('Install tart-guest-agent in the image') as string,
  });
  const full = await started('mac2', 'MacOS', true, { sshAuthorizedKeys: KEYS });
  mkdirSync(host.tart.guestHome('berth-mac2'), { recursive: true });
  writeFileSync(join(host.tart.guestHome('berth-mac2'), '.ssh'), 'a file');
  await host.driver.askGuest(full, { facts: false, signal: NEVER });
  expect(await keysOf(full)).toMatchObject({
    reason: 'KeysNotGiven',
    message: expect.stringMatching(/The script that adds them ended with code [1-9]/) as string,
  });
  const linux = await started('linux1', 'Linux', true, { sshAuthorizedKeys: KEYS });
  await host.driver.askGuest(linux, { facts: false, signal: NEVER });
  expect(await keysOf(linux)).toBeUndefined();
  expect(existsSync(host.tart.guestHome('berth-linux1'))).toBe(false);
});

test('passes connections on from its reserved ports, also while the agent restarts, and closes them with the machine', async () => {
  const guest = createServer((socket) => socket.on('error', () => undefined).pipe(socket));
  guest.listen(0, '127.0.0.1');
  await once(guest, 'listening');
  const { port: guestPort } = guest.address() as AddressInfo;
  const ports = [{ protocol: 'TCP', hostPort: await freePort(), guestPort }] as const;
  const plain = tartPlan('linux1', 'Linux');
  const plan = {
    ...plain,
    network: { ...plain.network, kind: 'user', hostAddress: '127.0.0.1', ports },
  } as const;
  const folder = host.folder('linux1');
  await host.driver.create(folder, plan, host.images.linux);
  for (const start of ['first', 'second']) {
    await host.driver.start(folder, plan);
    expect(await host.driver.address('linux1')).toBe('127.0.0.1');
    const client = connect(ports[0].hostPort, '127.0.0.1').on('error', () => undefined);
    for (const agent of ['one agent', 'the next agent']) {
      client.write(`${start} start, ${agent}`);
      expect(String((await once(client, 'data'))[0])).toBe(`${start} start, ${agent}`);
      await host.restartAgent();
    }
    host.tart.give('no-address');
    expect(await host.driver.address('linux1')).toBeUndefined();
    await expect(text(connect(ports[0].hostPort, '127.0.0.1'))).rejects.toThrow('ECONNRESET');
    host.tart.take('no-address');
    const closed = once(client, 'close');
    await host.driver.stop(folder, { graceMilliseconds: 0 });
    await closed;
  }
  const taken = { ...plan, network: { ...plan.network, ports: [{ ...ports[0], hostPort: guestPort }] } };
  await expect(host.driver.start(folder, taken)).rejects.toMatchObject({
    reason: 'PortTaken',
    message: expect.stringContaining(`port ${guestPort}: Address already in use`) as string,
  });
  guest.close();
});

/** Returns the plan of a machine whose packets are filtered. */
function filteredPlan(name: string): VmLaunchPlan {
  const plain = tartPlan(name, 'Linux');
  const filter = { mayReach: ['10.1.0.0/16'], mayNotReach: ['169.254.0.0/16'] };
  return { ...plain, network: { ...plain.network, filter } as VmLaunchPlan['network'] };
}

test('a guest whose packets are filtered has the program softnet beside it, which the program tart finds, starts and ends', async () => {
  const softnet = makeSoftnetProgram(host.directory);
  const [folder, plan] = [host.folder('linux1'), filteredPlan('linux1')];
  await host.driver.create(folder, plan, host.images.linux);
  await host.driver.start(folder, plan);
  const wanted =
    '--vm-fd 0 --vm-mac-address 52:54:00:12:34:56 --allow @host,10.1.0.0/16 --block 169.254.0.0/16';
  await expect.poll(() => existsSync(`${softnet}.calls`), WAIT).toBe(true);
  expect(readFileSync(`${softnet}.calls`, 'utf8')).toBe(`${wanted}\n`);
  await host.restartAgent();
  expect(await host.driver.filter('linux1')).toMatchObject({ mayReach: ['10.1.0.0/16'] });
  await host.driver.stop(folder, { graceMilliseconds: 60_000 });
  expect(await host.driver.inspect(folder)).toEqual({ kind: 'stopped' });
});

test('a guest does not run without the program that is to filter its packets, and ends with it', async () => {
  const [folder, plan] = [host.folder('linux1'), filteredPlan('linux1')];
  await host.driver.create(folder, plan, host.images.linux);
  await expect(host.driver.start(folder, plan)).rejects.toMatchObject({
    reason: 'StartFailed',
    message: expect.stringContaining('softnet not found in PATH') as string,
  });
  const softnet = makeSoftnetProgram(host.directory);
  writeFileSync(softnet, '#!/bin/sh\nread -r _ <"$0.end"\nexit 1\n');
  spawnSync('mkfifo', [`${softnet}.end`]);
  await host.driver.start(folder, plan);
  writeFileSync(`${softnet}.end`, 'now\n');
  await expect
    .poll(async () => await host.driver.inspect(folder), WAIT)
    .toMatchObject({
      kind: 'exited',
      reason: 'Crashed',
      message: expect.stringContaining('Softnet process terminated prematurely') as string,
    });
});

/** Returns an IPSW of this content, as the store of the agent has it. */
function ipsw(content: string): BaseImage {
  const path = join(host.directory, 'restore.ipsw');
  writeFileSync(path, content);
  return { path, digest: 'sha256:0', format: 'raw', virtualSizeBytes: content.length };
}

test('gives a VM with a dynamic identity an ECID of its own, which it keeps when its disk is reset', async () => {
  const plan = tartPlan('mac1', 'MacOS', { hardwareIdentity: 'Dynamic' });
  const folder = host.folder('mac1');
  await host.driver.create(folder, plan, host.images.darwin);
  const { ecid: own } = configOf('mac1');
  expect(own).not.toBe(OF_IMAGE);
  await host.driver.start(folder, plan);
  expect(await identityOf('mac1')).toMatchObject({ ready: true, reason: 'IdentityNew' });
  await host.driver.revert(folder, plan, host.images.darwin);
  expect(configOf('mac1').ecid).toBe(own);
});

test('installs macOS from an IPSW, and gives the machine its MAC address', async () => {
  const plain = tartPlan('mac1', 'MacOS', { image: IMAGE });
  const plan = { ...plain, cpu: 4, guest: { ...plain.guest, diskSizeBytes: 1_500_000_000 } };
  await host.driver.create(host.folder('mac1'), plan, ipsw('PK\x03\x04'));
  await host.driver.start(host.folder('mac1'), plan);
  const calls = host.tart.calls.map((call) => call.join(' ').replaceAll(host.directory, ''));
  expect(calls.filter((call) => call.startsWith('create'))).toEqual([
    'create berth-mac1 --from-ipsw /restore.ipsw --disk-size 2',
  ]);
  expect(configOf('mac1')).toMatchObject({ os: 'darwin', macAddress: '52:54:00:12:34:56' });
  expect(await identityOf('mac1')).toMatchObject({ ready: false, reason: 'IdentityOfHypervisor' });
  expect(host.tart.faults).toEqual([]);
});

test('says why macOS could not be installed, and begins no installation for a VM that is deleted', async () => {
  const folder = host.folder('mac1');
  const plan = tartPlan('mac1', 'MacOS', { image: IMAGE });
  await expect(host.driver.create(folder, plan, ipsw('<html>'))).rejects.toMatchObject({
    reason: 'CreateFailed',
    message: expect.stringContaining('the restore image cannot be loaded') as string,
  });
  const { length } = host.tart.calls;
  const gone = AbortSignal.abort(new Error('not wanted'));
  await expect(host.driver.create(folder, plan, ipsw('PK'), gone)).rejects.toThrow('not wanted');
  expect(host.tart.calls).toHaveLength(length);
  await host.driver.delete(folder);
  expect(existsSync(dirname(host.disk('mac1')))).toBe(false);
});

/** Returns the process that installs macOS for the machine mac1. */
async function installation(): Promise<ProcessIdentity | undefined> {
  return await findByArgument('create', 'berth-mac1');
}

test.each(['nobody wants it any more', 'its agent stops'])(
  'the installation of a reset ends when %s',
  async (why) => {
    const [folder, plan, base] = [
      host.folder('mac1'),
      tartPlan('mac1', 'MacOS', { image: IMAGE }),
      ipsw('PK'),
    ];
    await host.driver.create(folder, plan, base);
    host.tart.give('install-lasts');
    const unwanted = new AbortController();
    const reset = host.driver.revert(folder, plan, base, undefined, unwanted.signal);
    reset.catch(() => undefined);
    await expect.poll(installation, WAIT).toBeDefined();
    if (why === 'its agent stops') {
      await host.restartAgent();
      await expect(reset).rejects.toMatchObject({ reason: 'Interrupted' });
    } else {
      unwanted.abort(new Error('not wanted'));
      await expect(reset).rejects.toThrow('not wanted');
    }
    expect(await installation()).toBeUndefined();
    host.tart.take('install-lasts');
    await host.driver.revert(folder, plan, base);
    expect(configOf('mac1')).toMatchObject({ macAddress: '52:54:00:12:34:56' });
  },
);

test('a deletion ends the installation of a reset that has outlived its agent', async () => {
  const [folder, base] = [host.folder('mac1'), ipsw('PK')];
  await host.driver.create(folder, tartPlan('mac1', 'MacOS', { image: IMAGE }), base);
  host.tart.give('install-lasts');
  const parameters = ['create', 'berth-mac1', '--from-ipsw', base.path, '--disk-size', '1'];
  const orphan = spawn(host.program, parameters, {
    env: environment({ path: host.program, home: homeOf(host.directory) }),
  });
  const ended = once(orphan, 'exit');
  await expect.poll(installation, WAIT).toBeDefined();
  await host.driver.delete(folder);
  expect(await ended).toEqual([null, 'SIGKILL']);
  expect(existsSync(dirname(host.disk('mac1')))).toBe(false);
});
