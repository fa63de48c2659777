import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Interrupted } from '../errors.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import { scp, ssh } from './ssh.ts';
import { makeTerminal } from '../../test/fixtures/terminals.ts';

/** Time limit for the start of ssh, which usually takes milliseconds. */
const START_MILLISECONDS = 20_000;

let folder: string;
let server: Server;
let kubeconfig: string;
let uid: string;
let context: { name: string; namespace?: string };

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-ssh-'));
  // These programs take the place of ssh and scp, and write their arguments to a file.
  for (const program of ['ssh', 'scp']) {
    const script = `#!/bin/sh\nprintf '%s\\n' "$@" > ${folder}/arguments\n`;
    await writeFile(join(folder, program), script, { mode: 0o700 });
  }
  vi.stubEnv('PATH', `${folder}${delimiter}${process.env['PATH']}`);
  server = createServer((_request, response) => {
    response.setHeader('content-type', 'application/json');
    const metadata = { name: 'desk', namespace: 'berth', uid };
    response.end(JSON.stringify({ metadata, spec: {}, status: { phase: 'Running' } }));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  kubeconfig = join(folder, 'kubeconfig');
  uid = '7d9f2b1c-1111-4222-8333-0123456789ab';
  context = { name: 'a' };
});

afterEach(async () => {
  vi.unstubAllEnvs();
  server.close();
  await rm(folder, { recursive: true });
});

type Action = (terminal: Terminal, globals: Globals) => Promise<void>;
const plain: Action = async (terminal, globals) =>
  await ssh(terminal, globals, { name: 'desk', command: [] });

async function login({ signal } = new AbortController(), action = plain): Promise<void> {
  const { port } = server.address() as AddressInfo;
  const { name, namespace } = context;
  const document = {
    clusters: [{ name: 'a', cluster: { server: `http://127.0.0.1:${port}` } }],
    contexts: [{ name, context: { cluster: 'a', user: 'a', namespace } }],
    users: [{ name: 'a', user: { token: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  await action(makeTerminal({ environment: { HOME: folder }, signal }), {
    kubeconfig,
    context: name,
    output: 'table',
  });
}

async function readArguments(): Promise<string[]> {
  return (await readFile(join(folder, 'arguments'), 'utf8')).trimEnd().split('\n');
}

it('knows the key of a VM by its UID', async () => {
  await login();
  expect(await readFile(join(folder, 'arguments'), 'utf8')).toContain(`HostKeyAlias=${uid}`);
});

it('shares no connection with another VM of the name, whatever the configuration of ssh says', async () => {
  await login();
  expect(await readFile(join(folder, 'arguments'), 'utf8')).toContain('ControlPath=none\n');
});

it.each(['*', 'a\n*', '"@cert-authority *', ''])('starts no ssh for the UID %j', async (hostile) => {
  uid = hostile;
  await expect(login()).rejects.toThrow('UID');
  expect(existsSync(join(folder, 'arguments'))).toBe(false);
});

it('starts no ssh for a namespace that would be a command in the shell fish', async () => {
  context = { name: 'a', namespace: String.raw`\'(touch hit)\'` };
  await expect(login()).rejects.toThrow('No namespace can have the name');
  expect(existsSync(join(folder, 'arguments'))).toBe(false);
});

it('gives ssh a command whose words no shell changes', async () => {
  context = { name: String.raw`it's a \'(touch hit)\' $(touch hit)` };
  await login();
  const [, proxy = ''] = /^ProxyCommand=(.*)$/m.exec(await readFile(join(folder, 'arguments'), 'utf8')) ?? [];
  const args = execFileSync('sh', ['-c', `printf '%s\\n' ${proxy}`], { encoding: 'utf8', cwd: folder });
  expect(args.split('\n')).toContain(context.name);
  // In fish, a backslash in single quotes has a special meaning.
  expect(proxy.replace(/"[^"]*"/g, '')).not.toContain('\\');
});

/** Reports whether the process runs. */
function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

it('ends ssh when the user ends the command, because the signal might not reach ssh', async () => {
  await writeFile(join(folder, 'ssh'), `#!/bin/sh\necho $$ > ${folder}/pid\nexec sleep 30\n`);
  const stop = new AbortController();
  const ended = login(stop);
  const pid = async () => await readFile(join(folder, 'pid'), 'utf8').catch(() => '');
  const program = Number(await vi.waitUntil(pid, { timeout: START_MILLISECONDS }));
  stop.abort(new Interrupted());
  await expect(ended).rejects.toThrow('Interrupted');
  await expect.poll(() => isRunning(program), { timeout: START_MILLISECONDS / 2 }).toBe(false);
});

it('uses only the key that the user chooses', async () => {
  const flags = { name: 'desk', user: 'me', identity: '/keys/ci', command: ['-v'] };
  await login(undefined, async (terminal, globals) => await ssh(terminal, globals, flags));
  expect(await readArguments()).toEqual(expect.arrayContaining(['-i', '/keys/ci', 'IdentitiesOnly=yes']));
  expect((await readArguments()).slice(-3)).toEqual(['--', 'me@desk', '-v']);
});

it.each([
  [{ source: 'a.txt', target: 'desk:/tmp/' }, ['--', 'a.txt', 'root@desk:/tmp/']],
  [{ source: 'desk:b:c', target: './d:e', recursive: true }, ['-r', '--', 'root@desk:b:c', './d:e']],
  [{ source: '-x', target: 'desk:', user: 'me' }, ['--', '-x', 'me@desk:']],
])('copies %j', async (copy, last) => {
  await login(undefined, async (terminal, globals) => await scp(terminal, globals, copy));
  expect((await readArguments()).slice(-last.length)).toEqual(last);
  expect(await readArguments()).toContain(`HostKeyAlias=${uid}`);
});

it.each([
  ['a', 'b'],
  ['desk:a', 'desk:b'],
  ['./desk:a', '/desk:b'],
])('copies nothing from %s to %s, because exactly one must be of a VM', async (source, target) => {
  const copied = login(
    undefined,
    async (terminal, globals) => await scp(terminal, globals, { source, target }),
  );
  await expect(copied).rejects.toThrow('Exactly one of the source and the target');
  expect(existsSync(join(folder, 'arguments'))).toBe(false);
});
