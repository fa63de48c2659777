/** Streams to VMs by the command `berth`, through a real API server. The machine is a stand-in; its programs run on this host. */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { access, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ConsoleReadOptions } from '../../agent/console/records.ts';
import type { GuestCommand } from '../../agent/drivers/driver.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { PODS } from '../../kube/core.ts';
import { runHere } from '../fixtures/guestprograms.ts';
import { VMs } from '../fixtures/vms.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken, writeTokenKubeconfig } from '../support/members.ts';
import { BerthCommand, type CommandResult } from '../wires/berth.ts';
import type { StartedProgram } from '../wires/startedprogram.ts';
import { machineFor, operatorClient, podFor, TestHost } from '../worlds/agenthost.ts';

const suffix = randomBytes(4).toString('hex');
const NAMESPACE = `platform-clistreams-${suffix}`;
const VM = 'desk';
const MEBIBYTE = 1024 * 1024;
/** A guest port on which no program listens. */
const SILENT_PORT = 9;
/** Time limit for a console to show what was typed, before it is typed again. */
const LOOK_MILLISECONDS = 500;
/**
 * Time limit for others to type after a user has left or was killed. It includes the start of their command. Without the input's end, the
 * agent would know of the loss only after a ping, which is sent each 30 s.
 */
const LEFT_MILLISECONDS = 15_000;

let cluster: Cluster;
let host: TestHost;
let vms: VMs;
let folder: string;
let guest: Server;
let command: BerthCommand;
/** Kubeconfig of a user who sees VMs and has no right to connect to them. */
let viewer: string;
const running: StartedProgram[] = [];

const portOf = (server: Server): number => (server.address() as AddressInfo).port;

beforeAll(async () => {
  cluster = await sharedCluster();
  folder = await mkdtemp(join(tmpdir(), 'berth-streams-'));
  guest = createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => undefined).pipe(socket);
  });
  await once(guest.listen(0, '127.0.0.1'), 'listening');
  await cluster.createNamespace(NAMESPACE);
  const clientCAFile = join(cluster.directory, 'pki', 'ca.crt');
  host = await TestHost.make(cluster, { name: `clistreams-${suffix}`, kubelet: { port: 0, clientCAFile } });
  Object.assign(host.driver, {
    execute: async (_: unknown, request: GuestCommand) => await runHere(request, folder),
    console: () => ({
      read: async function* ({ tailLines = 2 }: ConsoleReadOptions) {
        yield* ['the first line\n', 'the last line\n'].slice(-tailLines);
      },
    }),
    forwardPort: async (_: unknown, port: number) => ({
      port: port === SILENT_PORT ? 1 : portOf(guest),
      close: async () => undefined,
    }),
  });
  await host.start();
  vms = new VMs(cluster, NAMESPACE);
  const operator = await operatorClient(cluster);
  await operator.create(PODS, podFor(host, machineFor(NAMESPACE, VM)));
  await Promise.all([makeVM(VM, 'Running'), makeVM('off', 'Stopped'), makeVM('lost', 'Running')]);
  const token = await accountToken(
    cluster,
    { namespace: NAMESPACE, name: 'dev' },
    { role: 'berth-role-dev' },
  );
  command = await BerthCommand.make(await writeTokenKubeconfig(cluster, token, `${suffix}-dev`));
  const reader = await accountToken(cluster, { namespace: NAMESPACE, name: 'viewer' }, { role: 'view' });
  viewer = await writeTokenKubeconfig(cluster, reader, `${suffix}-viewer`);
  // Until the cluster has signed the agent's serving certificate, the API server does not connect to the agent.
  await waitFor('the VM to answer', async () => (await berth('exec', VM, '--', 'true')).code === 0);
});

afterAll(async () => {
  for (const one of running) {
    one.kill();
  }
  guest?.close();
  await command?.[Symbol.asyncDispose]();
  await host?.remove();
  await rm(folder, { recursive: true, force: true });
  await cluster.kubectl(['delete', 'namespace', NAMESPACE, '--wait=false']);
  await cluster.kubectl(['delete', 'node', host.name]);
});

async function makeVM(name: string, phase: string): Promise<void> {
  await vms.create(name);
  const status = { status: { phase } };
  await cluster.client().mergePatch(VMS, { namespace: NAMESPACE, name }, status, { subresource: 'status' });
}

async function berth(verb: string, ...args: string[]): Promise<CommandResult> {
  return await command.run(['vm', verb, '-n', NAMESPACE, ...args]);
}

function start(verb: string, ...args: string[]): StartedProgram {
  return follow(command.start(['vm', verb, '-n', NAMESPACE, ...args]));
}

function follow(program: StartedProgram): StartedProgram {
  running.push(program);
  return program;
}

function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}

describe('screenshot', () => {
  it('writes the picture of the host into the file, with the right to pods/exec alone', async () => {
    const file = join(folder, 'screen.png');
    expect(await berth('screenshot', VM, file)).toEqual({
      code: 0,
      out: `Wrote the screen of vm ${VM} to ${file}\n`,
      err: '',
    });
    expect(await readFile(file, 'latin1')).toBe('\u0089PNG\r\n\u001a\npicture');
    const args = ['vm', 'screenshot', '-n', NAMESPACE, VM, join(folder, 'refused.png')];
    const { code, err } = await command.run(args, { kubeconfig: viewer });
    expect([code, err]).toEqual([3, expect.stringMatching(/cannot get resource "pods\/exec".*Ask an admin/)]);
  });
});

describe('exec', () => {
  it('keeps output, errors and exit code', async () => {
    const script = 'echo out; echo err >&2; exit 5';
    expect(await berth('exec', VM, '--', 'sh', '-c', script)).toEqual({
      code: 5,
      out: 'out\n',
      err: 'err\n',
    });
  });

  it('passes the standard input on to its end', async () => {
    const bytes = randomBytes(700_000).toString('base64');
    const copy = start('exec', '-i', VM, '--', 'sha256sum');
    copy.type(bytes);
    expect(await copy.result()).toMatchObject({
      code: 0,
      stdout: expect.stringContaining(sha256(Buffer.from(bytes))),
      stderr: '',
    });
  });

  it('ends when the user interrupts it', async () => {
    const sleeper = start('exec', VM, '--', 'sh', '-c', 'touch begun; sleep 600');
    await waitFor('the command to run', async () => {
      await access(join(folder, 'begun'));
      return true;
    });
    sleeper.interrupt();
    expect(await sleeper.ended()).toEqual({ code: 130, stdout: '', stderr: 'error: Interrupted\n' });
  });

  it.each([
    [
      'a VM that does not exist',
      ['absent', '--', 'true'],
      4,
      `vm "absent" not found in namespace ${NAMESPACE}`,
    ],
    [
      'a VM that does not run',
      ['off', '--', 'true'],
      1,
      'VM off is Stopped. Start the VM with `berth vm start off`',
    ],
    ['a VM without a machine', ['lost', '--', 'true'], 1, 'VM lost has no machine yet'],
    ['a terminal without one', ['-t', VM, '--', 'true'], 2, '--tty: the standard input is not a terminal'],
    ['no command', [VM], 2, "missing required argument 'command'"],
  ])('refuses %s', async (_, args, code, message) => {
    expect(await berth('exec', ...args)).toEqual({ code, out: '', err: expect.stringContaining(message) });
  });

  it('refuses a terminal with the words of the host alone', async () => {
    const session = follow(
      command.inTerminal(`berth vm exec -n ${NAMESPACE} -t ${VM} -- true; echo "end $?"`),
    );
    const [, expected] = await session.prints(/^([^]*)end 1/);
    expect(expected).toMatch(/^error: A guest agent has no terminals: leave out -t[^]*\n$/);
  });

  it('refuses a user without rights', async () => {
    const args = ['vm', 'exec', '-n', NAMESPACE, VM, '--', 'true'];
    const { code, err } = await command.run(args, { kubeconfig: viewer });
    expect([code, err]).toEqual([3, expect.stringMatching(/cannot get resource "pods\/exec".*Ask an admin/)]);
  });
});

describe('port-forward', () => {
  /** Sends bytes and returns what comes back. The guest sends everything back. */
  async function echo(port: number, bytes: Buffer): Promise<Buffer> {
    const socket = connect({ port, host: '127.0.0.1' });
    socket.write(bytes);
    const chunks: Buffer[] = [];
    let left = bytes.length;
    for await (const chunk of socket as AsyncIterable<Buffer>) {
      chunks.push(chunk);
      left -= chunk.length;
      if (left <= 0) {
        break;
      }
    }
    return Buffer.concat(chunks);
  }

  it('carries several connections of several ports unchanged, until the user ends it', async () => {
    const forward = start('port-forward', VM, ':22', ':vnc');
    const [, ssh] = await forward.prints(/Forwarding 127\.0\.0\.1:(\d+) to port 22 of VM desk/);
    const [, screen] = await forward.prints(/127\.0\.0\.1:(\d+) to port 5999/);
    const echoes = Array.from({ length: 4 }, async () => {
      const bytes = randomBytes(4 * MEBIBYTE);
      expect(sha256(await echo(Number(ssh), bytes))).toBe(sha256(bytes));
    });
    await Promise.all(echoes);
    const [greeting] = (await once(connect(Number(screen), '127.0.0.1'), 'data')) as [Buffer];
    expect(String(greeting)).toBe('RFB 003.008\n');
    forward.interrupt();
    expect(await forward.ended()).toMatchObject({ code: 0, stderr: '' });
  });

  it('does not read from a guest whose caller reads nothing', async () => {
    const forward = start('port-forward', VM, ':22');
    const [, port] = await forward.prints(/127\.0\.0\.1:(\d+)/);
    const socket = connect({ port: Number(port), host: '127.0.0.1' }).pause();
    const piece = Buffer.alloc(MEBIBYTE);
    let last = -1;
    await waitFor(
      'the caller to be stopped',
      () => {
        for (let count = 0; count < 16 && socket.writableLength < MEBIBYTE; count += 1) {
          socket.write(piece);
        }
        const isStopped = socket.writableLength >= MEBIBYTE && socket.bytesWritten === last;
        last = socket.bytesWritten;
        return isStopped;
      },
      { intervalMilliseconds: 300 },
    );
    expect(socket.bytesWritten).toBeLessThan(128 * MEBIBYTE);
    socket.destroy();
    forward.kill();
  });

  it('names the port that refuses connections, and goes on', async () => {
    const forward = start('port-forward', VM, `:${SILENT_PORT}`);
    const [, port] = await forward.prints(/127\.0\.0\.1:(\d+)/);
    for (const _attempt of [1, 2]) {
      await once(
        connect(Number(port), '127.0.0.1').on('error', () => undefined),
        'close',
      );
    }
    const twice = /(error: Port 9 of the guest cannot be reached: no program listens on it\n){2}/;
    expect(await forward.prints(twice)).toBeDefined();
    forward.kill();
  });

  it('ends for a user without rights', async () => {
    const args = ['vm', 'port-forward', '-n', NAMESPACE, VM, ':22'];
    const forward = follow(command.start(args, { kubeconfig: viewer }));
    const [, port] = await forward.prints(/127\.0\.0\.1:(\d+)/);
    connect(Number(port), '127.0.0.1').on('error', () => undefined);
    expect(await forward.ended()).toMatchObject({
      code: 3,
      stderr: expect.stringContaining('cannot get resource "pods/portforward"'),
    });
  });

  it.each([
    [`${SILENT_PORT}:70000`, 2, 'A port must be a number from 1 to 65535'],
    ['1:2:3', 2, 'LOCAL:REMOTE'],
    ['IN_USE', 1, 'of this computer is in use. Choose another local port, or :22 for a free local port'],
  ])('refuses %s', async (text, code, message) => {
    const pair = text === 'IN_USE' ? `${portOf(guest)}:22` : text;
    expect(await berth('port-forward', VM, pair)).toEqual({
      code,
      out: '',
      err: expect.stringContaining(message),
    });
  });
});

/** Starts a user who types, as soon as those who typed before have left. @throws Error when they have not left within the limit. */
async function typist(limit?: { deadlineMilliseconds: number }): Promise<StartedProgram> {
  const begin = async (): Promise<StartedProgram | undefined> => {
    const writer = start('console', '-i', VM);
    writer.type('hello\n');
    const [said] = await writer.prints(/hello|types into this console/);
    return said === 'hello' ? writer : undefined;
  };
  return await waitFor('the console to take input', begin, limit);
}

describe('console', () => {
  it('has the terminal of the user until Ctrl+], and then restores it', async () => {
    const script = `echo "begin $(stty -g)"; berth vm console -n ${NAMESPACE} ${VM}; echo "end $? $(stty -g)"`;
    const console = follow(command.inTerminal(script));
    await console.prints(/Press Ctrl\+] to leave/);
    await waitFor('the guest to show what is typed', async () => {
      console.type('\u0003typed\n');
      return (await console.prints(/typed/, LOOK_MILLISECONDS)) !== undefined;
    });
    const second = await command.run(['vm', 'console', '-n', NAMESPACE, '-i', VM]);
    expect([second.code, second.err]).toEqual([1, expect.stringContaining('types into this console')]);
    console.type('\u001d');
    const [, before, code, after] = await console.prints(/begin (\S+)[^]*end (\d+) (\S+)\s/);
    expect([code, after]).toEqual(['0', before]);
  });

  it('is read by others without its input', async () => {
    const [reader, writer] = [start('console', VM), await typist()];
    await waitFor('the reader to read', async () => {
      writer.type('hello reader\n');
      return (await reader.prints(/hello reader/, LOOK_MILLISECONDS)) !== undefined;
    });
    reader.kill();
    writer.kill();
  });

  it('has room for another user soon after the program of the one who types was killed', async () => {
    const writer = await typist();
    const refused = await command.run(['vm', 'console', '-n', NAMESPACE, '-i', VM]);
    expect(refused.err).toContain('types into this console');
    writer.kill();
    (await typist({ deadlineMilliseconds: LEFT_MILLISECONDS })).kill();
  });
});

it('logs show the console, or only its end', async () => {
  const [all, last, since] = await Promise.all([
    berth('logs', VM),
    berth('logs', VM, '--tail', '1'),
    berth('logs', VM, '--since', '5 minutes'),
  ]);
  expect(all).toEqual({ code: 0, out: 'the first line\nthe last line\n', err: '' });
  expect(last).toEqual({ code: 0, out: 'the last line\n', err: '' });
  expect(since.code).toBe(2);
  // The log of this stand-in ends although its machine runs, as it does when an agent is replaced.
  const { code, out, err } = await berth('logs', VM, '-f');
  expect([code, out]).toEqual([5, 'the first line\nthe last line\n']);
  expect(err).toContain('ended, but the VM still exists');
  expect(await berth('logs', 'lost')).toMatchObject({
    code: 1,
    err: expect.stringContaining('has no machine yet'),
  });
});

/** Puts a program into a folder of the search path, and returns the path. */
async function programNamed(name: string, script: string): Promise<Record<string, string>> {
  await writeFile(join(folder, name), `#!/bin/bash\n${script}\n`, { mode: 0o755 });
  return { PATH: `${folder}:${process.env.PATH}`, RESULT: join(folder, `${name}.txt`) };
}

describe('ssh', () => {
  it('runs the ssh of the machine, with this command as its proxy and keys by the UID of the VM', async () => {
    command.configure('ssh: {user: deploy}\n');
    const environment = await programNamed(
      'ssh',
      `printf '%s\\n' "$@" >"$RESULT"
for word in "$@"; do case "$word" in ProxyCommand=*) proxy="\${word#ProxyCommand=}" ;; esac; done
coproc PROXY { exec sh -c "exec \${proxy//%%/%}"; }
printf 'hello\\n' >&"\${PROXY[1]}"; head -c 6 <&"\${PROXY[0]}"; kill -HUP "$PROXY_PID"
exit 7`,
    );
    const args = ['vm', 'ssh', '-n', NAMESPACE, VM, '--', 'uname', '-a'];
    expect(await command.run(args, { environment })).toEqual({ code: 7, out: 'hello\n', err: '' });
    const { metadata } = await vms.get(VM);
    const expected = await readFile(environment.RESULT ?? '', 'utf8');
    expect(expected).toMatch(new RegExp(`^HostKeyAlias=${metadata.uid}$`, 'm'));
    expect(expected).toMatch(/^UserKnownHostsFile=".+\/state\/berth\/known_hosts"$/m);
    expect(expected).toContain('StrictHostKeyChecking=accept-new\n');
    expect(expected).toMatch(/\n--\ndeploy@desk\nuname\n-a\n$/);
  });

  it('names the program that is missing', async () => {
    const environment = { PATH: folder };
    await rm(join(folder, 'ssh'), { force: true });
    const { code, err } = await command.run(['vm', 'ssh', '-n', NAMESPACE, VM], { environment });
    expect([code, err]).toEqual([1, expect.stringContaining('There is no program ssh on this computer')]);
  });
});

describe('vnc', () => {
  it('opens a viewer and ends with it', async () => {
    const environment = await programNamed(
      'vncviewer',
      'exec 3<>"/dev/tcp/127.0.0.1/${1##*:}"; head -c 11 <&3 >"$RESULT"',
    );
    const args = ['vm', 'vnc', '-n', NAMESPACE, VM];
    const { code, out } = await command.run(args, { environment: { ...environment, DISPLAY: ':0' } });
    expect([code, out]).toEqual([0, expect.stringContaining('vnc://127.0.0.1:')]);
    expect(await readFile(environment.RESULT ?? '', 'utf8')).toBe('RFB 003.008');
  });

  it('prints the address without a viewer', async () => {
    const screen = start('vnc', VM);
    await screen.prints(/No viewer was found/);
    screen.interrupt();
    expect(await screen.ended()).toMatchObject({ code: 0, stdout: expect.stringMatching(/vnc:\/\/127/) });
  });
});
