/** Streams to machines, with kubectl through a real API server. The machine is a stand-in; its programs run on this host. */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Duplex, PassThrough } from 'node:stream';
import { promisify } from 'node:util';
import { Attach, Exec, KubeConfig, PortForward as WebSocketPortForward } from '@kubernetes/client-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SharedConsole } from '../../agent/console/terminal.ts';
import { type GuestCommand, StreamRefused } from '../../agent/drivers/driver.ts';
import { MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import { PODS } from '../../kube/core.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { runHere } from '../fixtures/guestprograms.ts';
import { sharedCluster } from '../support/cluster.ts';
import { StartedProgram } from '../wires/startedprogram.ts';
import { DESIRED, machineFor, operatorClient, podFor, TestHost } from '../worlds/agenthost.ts';

const suffix = randomBytes(4).toString('hex');
const NAMESPACE = `platform-streams-${suffix}`;
const VM = 'desk';
const MEBIBYTE = 1024 * 1024;
/** A guest port on which no program listens. */
const SILENT_PORT = 9;
/** A guest port whose program sends forever. */
const ENDLESS_PORT = 19;

/** Time limit for an output of kubectl. If it takes longer, kubectl hangs. */
const ATTACH_MILLISECONDS = 500;
/** Callers are told at once that the agent ends. */
const LOSS_MILLISECONDS = 5_000;

let cluster: Cluster;
let host: TestHost;
let folder: string;
let guest: Server;
let endless: Server;
/** Bytes that the endless program has sent. */
let endlessBytes = 0;
/** Forwards that are open at this moment. */
let forwards = 0;
const running: StartedProgram[] = [];

function kubectl(...args: string[]): StartedProgram {
  const started = new StartedProgram(cluster.kubectlPath, [
    '--kubeconfig',
    cluster.kubeconfig,
    '-n',
    NAMESPACE,
    ...args,
  ]);
  running.push(started);
  return started;
}

/** Starts `kubectl port-forward` and returns it with its local port. */
async function portForward(port: number | string): Promise<{ forwarder: StartedProgram; port: number }> {
  const forwarder = kubectl('port-forward', `pod/${VM}`, `:${port}`);
  const [, local = ''] = await forwarder.prints(/127\.0\.0\.1:(\d+) ->/);
  return { forwarder, port: Number(local) };
}

function listenLocally(handle: (socket: Socket) => void): Promise<Server> {
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => undefined);
    handle(socket);
  });
  const { promise, resolve } = Promise.withResolvers<Server>();
  server.listen(0, '127.0.0.1', () => resolve(server));
  return promise;
}

const portOf = (server: Server): number => (server.address() as AddressInfo).port;

const connectionsOf = (server: Server): Promise<number> =>
  promisify<number>((callback) => server.getConnections(callback))();

/** Sends bytes and returns what comes back until the end. */
async function exchange(port: number, bytes: Buffer): Promise<Buffer> {
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  const received = socket.toArray();
  socket.end(bytes);
  return Buffer.concat((await received) as Buffer[]);
}

function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** The guest's end of the console. Like a terminal, it prints what is typed. */
let terminal = new PassThrough();
const console = new SharedConsole(async () => {
  terminal = new PassThrough();
  return terminal;
});

async function connectConsole(input: boolean): Promise<Duplex> {
  const stream = await console.open({ input });
  if (stream === undefined) {
    throw new StreamRefused('Another stream has the input of the console');
  }
  return stream;
}

beforeAll(async () => {
  cluster = await sharedCluster();
  folder = await mkdtemp(join(tmpdir(), 'berth-streams-'));
  guest = await listenLocally((socket) => socket.pipe(socket));
  endless = await listenLocally((socket) => {
    const send = (): void => {
      while (!socket.destroyed && socket.write(Buffer.alloc(65_536), () => (endlessBytes += 65_536))) {
        // The socket takes more.
      }
    };
    socket.on('drain', send);
    send();
  });
  await cluster.createNamespace(NAMESPACE);
  const clientCAFile = join(cluster.directory, 'pki', 'ca.crt');
  host = await TestHost.make(cluster, { name: `streams-${suffix}`, kubelet: { port: 0, clientCAFile } });
  Object.assign(host.driver, {
    execute: async (_: unknown, command: GuestCommand) => await runHere(command, folder),
    connectConsole: async (_: unknown, { input }: { input: boolean }) => await connectConsole(input),
    connectScreen: async () => {
      const screen = new PassThrough();
      screen.write('RFB 003.008\n');
      return screen;
    },
    forwardPort: async (_: unknown, port: number) => {
      forwards += 1;
      const close = async () => {
        forwards -= 1;
      };
      return { port: port === SILENT_PORT ? 1 : portOf(port === ENDLESS_PORT ? endless : guest), close };
    },
  });
  await host.start();
  const operator = await operatorClient(cluster);
  await operator.create(PODS, podFor(host, machineFor(NAMESPACE, VM)));
  await operator.create(
    PODS,
    podFor(host, machineFor(NAMESPACE, 'off'), { ...DESIRED, powerState: 'Stopped' }),
  );
  await waitFor('the VM to be Ready', async () => {
    const pod = await operator.get(PODS, { namespace: NAMESPACE, name: VM });
    return pod.status?.conditions?.some(({ type, status }) => type === 'Ready' && status === 'True');
  });
  // Until the cluster has signed the agent's serving certificate, the API server does not connect to the agent.
  await waitFor('the API server to reach the agent', async () => {
    const { code } = await kubectl('logs', VM).result();
    return code === 0;
  });
});

afterAll(async () => {
  for (const one of running) {
    one.kill();
  }
  guest?.close();
  endless?.close();
  await host?.remove();
  await rm(folder, { recursive: true, force: true });
  await cluster.kubectl(['delete', 'namespace', NAMESPACE, '--wait=false']);
  await cluster.kubectl(['delete', 'node', host.name]);
});

function clientConfig(): KubeConfig {
  const config = new KubeConfig();
  config.loadFromFile(cluster.kubeconfig);
  return config;
}

describe('port-forward', () => {
  it('carries 100 MB in each direction over 8 connections unchanged, and then leaves no connection open', async () => {
    const { forwarder, port } = await portForward(22);
    const exchanges = Array.from({ length: 8 }, async () => {
      const bytes = randomBytes(12.5 * MEBIBYTE);
      expect(sha256(await exchange(port, bytes))).toBe(sha256(bytes));
    });
    await Promise.all(exchanges);
    await waitFor('the forward to be closed', () => forwards === 0);
    await waitFor('the guest to have no connection', async () => (await connectionsOf(guest)) === 0);
    forwarder.kill();
  });

  it('has 50 connections at once', async () => {
    const { forwarder, port } = await portForward(22);
    const sockets = Array.from({ length: 50 }, () => connect({ port, host: '127.0.0.1' }));
    const echoes = sockets.map(async (socket, index) => {
      socket.write(`hello ${index}`);
      const [echo] = (await once(socket, 'data')) as [Buffer];
      expect(echo.toString()).toBe(`hello ${index}`);
    });
    await Promise.all(echoes);
    expect(forwards).toBe(1);
    for (const socket of sockets) {
      socket.destroy();
    }
    await waitFor('the forward to be closed', () => forwards === 0);
    forwarder.kill();
  });

  it('stops a guest that sends to a client who never reads', async () => {
    const { forwarder, port } = await portForward(ENDLESS_PORT);
    const socket = connect({ port, host: '127.0.0.1' }).pause();
    let last = -1;
    await waitFor(
      'the guest to be stopped',
      () => {
        const isStopped = endlessBytes > 0 && endlessBytes === last;
        last = endlessBytes;
        return isStopped;
      },
      { intervalMilliseconds: 500 },
    );
    expect(endlessBytes).toBeLessThan(128 * MEBIBYTE);
    socket.destroy();
    forwarder.kill();
    await waitFor('the forward to be closed', () => forwards === 0);
  });

  it('leads to the screen by the port 5999', async () => {
    const { forwarder, port } = await portForward(5999);
    const [greeting] = (await once(connect({ port, host: '127.0.0.1' }), 'data')) as [Buffer];
    expect(greeting.toString()).toBe('RFB 003.008\n');
    forwarder.kill();
  });

  it('names the port that refuses connections', async () => {
    const { forwarder, port } = await portForward(SILENT_PORT);
    connect({ port, host: '127.0.0.1' }).on('error', () => undefined);
    const reason = /Port 9 of the guest cannot be reached: no program listens on it/;
    await expect(forwarder.prints(reason)).resolves.toBeDefined();
  });

  it('serves clients of WebSockets', async () => {
    const [output, errors, input] = [new PassThrough(), new PassThrough(), new PassThrough()];
    await new WebSocketPortForward(clientConfig()).portForward(NAMESPACE, VM, [22], output, errors, input);
    input.write('over a WebSocket');
    const [echo] = (await once(output, 'data')) as [Buffer];
    expect(echo.toString()).toBe('over a WebSocket');
    input.end();
  });
});

describe('exec', () => {
  it('keeps output, errors and exit code', async () => {
    const result = await kubectl('exec', VM, '--', 'sh', '-c', 'echo out; echo err >&2; exit 5').result();
    expect(result).toMatchObject({ code: 5, stdout: 'out\n' });
    expect(result.stderr).toContain('err\n');
  });

  it('passes the standard input on, so that kubectl cp copies into the guest', async () => {
    const bytes = randomBytes(300_000);
    await writeFile(join(folder, 'source'), bytes);
    const result = await kubectl('cp', join(folder, 'source'), `${VM}:${join(folder, 'copy')}`).result();
    expect(result).toMatchObject({ code: 0 });
    expect(sha256(await readFile(join(folder, 'copy')))).toBe(sha256(bytes));
  });

  it('refuses an input that is too long', async () => {
    const exec = kubectl('exec', '-i', VM, '--', 'cat');
    exec.type(Buffer.alloc(2 * MEBIBYTE));
    exec.endInput();
    expect((await exec.result()).stderr).toContain('The standard input is longer than 1048576 bytes');
  });

  it('refuses a terminal', async () => {
    const [output, errors, input] = [new PassThrough(), new PassThrough(), new PassThrough()];
    const { promise, resolve } = Promise.withResolvers<string | undefined>();
    const client = new Exec(clientConfig());
    await client.exec(NAMESPACE, VM, MACHINE_CONTAINER, ['sh'], output, errors, input, true, ({ message }) =>
      resolve(message),
    );
    expect(await promise).toContain('A guest agent has no terminals');
  });

  it.each([
    ['a VM that does not run', ['exec', 'off', '--', 'true'], 'VM off is not running'],
    ['a user without rights', ['exec', '--as=stranger', VM, '--', 'true'], 'forbidden'],
  ])('refuses %s', async (_, args, message) => {
    const { code, stderr } = await kubectl(...args).result();
    expect(stderr).toContain(message);
    expect(code).not.toBe(0);
  });
});

describe('attach', () => {
  it('shows the console to all, takes the input of one, and ends with the machine', async () => {
    const reader = kubectl('attach', VM);
    const writer = kubectl('attach', '-i', VM);
    await waitFor('both to read', async () => {
      terminal.write('login: ');
      await Promise.all([reader, writer].map((one) => one.prints(/login: /, ATTACH_MILLISECONDS)));
      return true;
    });
    writer.type('root\n');
    await Promise.all([reader, writer].map((one) => one.prints(/root/)));
    const second = await kubectl('attach', '-i', VM).result();
    expect(second.stderr).toContain('Another stream has the input of the console');
    terminal.destroy();
    expect(await reader.result()).toMatchObject({ code: 0 });
    // Until the writer has ended, the agent refuses the input of the next test.
    await writer.result();
  });
});

it('a console with a terminal says how to leave it', async () => {
  const [output, errors, input] = [new PassThrough(), new PassThrough(), new PassThrough()];
  const client = new Attach(clientConfig());
  const socket = await client.attach(NAMESPACE, VM, MACHINE_CONTAINER, output, errors, input, true);
  expect(String(await once(output, 'data'))).toContain('Connected to the console of VM desk. Press Ctrl+]');
  const closed = once(socket, 'close');
  input.write('\u001d');
  await closed;
});

it('tells callers that the agent ends', async () => {
  const { forwarder } = await portForward(22);
  const reader = kubectl('attach', VM);
  await waitFor('the reader to read', async () => {
    terminal.write('hello\n');
    return await reader.prints(/hello/, ATTACH_MILLISECONDS);
  });
  await host.stop();
  // A client who is not told notices the end only after 10 s.
  await forwarder.prints(/lost connection to pod/, LOSS_MILLISECONDS);
  expect(await reader.result()).toMatchObject({
    code: 1,
    stderr: expect.stringContaining(
      'The agent of this host is stopping, but the VMs continue to run; connect again',
    ),
  });
});
