/** Streams of the console: the serial console and the screen of a VM over WebSockets of browsers, to a host whose machine is a stand-in. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { request } from 'node:https';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { PODS } from '../../kube/core.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import { machineFor, operatorClient, podFor, TestHost } from '../worlds/agenthost.ts';

const suffix = randomBytes(4).toString('hex');
const NAMESPACE = `platform-screens-${suffix}`;
const SCOPE = `/console/streams/namespaces/${NAMESPACE}/vms`;
const PATHS = { console: `${SCOPE}/desk/console`, vnc: `${SCOPE}/desk/vnc` } as const;
const PROTOCOLS = { console: 'v5.channel.k8s.io', vnc: 'v4.channel.k8s.io' } as const;
const TOKEN_PROTOCOL = 'base64url.bearer.authorization.k8s.io.';
/** Streams of one user at the same time. */
const USER_STREAMS = 16;
const KIBIBYTE = 1024;

let cluster: Cluster;
let server: ServerProcess;
let api: HTTPClient;
let host: TestHost;
let member: string;
let other: string;
let viewer: string;
let reader: string;
let stranger: string;
/** Bytes that the host has sent on screens which never end. */
let screenBytes = 0;
let isScreenEndless = false;
const sockets = new Set<WebSocket>();

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(NAMESPACE);
  server = await cluster.startServer({ name: `server-${NAMESPACE}` });
  api = new HTTPClient(server);
  const clientCAFile = join(cluster.directory, 'pki', 'ca.crt');
  host = await TestHost.make(cluster, { name: `screens-${suffix}`, kubelet: { port: 0, clientCAFile } });
  Object.assign(host.driver, { connectScreen: async () => makeScreen() });
  await host.start();
  const operator = await operatorClient(cluster);
  await operator.create(PODS, podFor(host, machineFor(NAMESPACE, 'desk')));
  for (const name of ['desk', 'waits']) {
    await cluster
      .client()
      .create(VMS, { metadata: { name, namespace: NAMESPACE }, spec: { image: 'image' } });
  }
  member = await token('member', 'berth-role-dev');
  other = await token('other', 'berth-role-dev');
  viewer = await token('viewer', 'berth-role-viewer');
  stranger = await token('stranger');
  const rights = ['--verb=get', '--resource=pods/attach,pods/portforward,vms.berth.dev'];
  await cluster.kubectl(['create', 'clusterrole', `only-get-${suffix}`, ...rights]);
  reader = await token('reader', `only-get-${suffix}`);
  await waitFor('the VM to be Ready', async () => {
    const pod = await operator.get(PODS, { namespace: NAMESPACE, name: 'desk' });
    return pod.status?.conditions?.some(({ type, status }) => type === 'Ready' && status === 'True');
  });
  // Until the cluster has signed the agent's serving certificate, the API server does not connect to the agent.
  await waitFor('the API server to reach the agent', async () => {
    await cluster.kubectl(['logs', 'desk', '-n', NAMESPACE]);
    return true;
  });
  await waitFor('the rights to be known', async () => {
    const answers = await Promise.all(
      [member, other].map(async (one) => await api.call(PATHS.console, { token: one })),
    );
    return answers.every(({ status }) => status === 426);
  });
});

afterEach(() => {
  isScreenEndless = false;
  for (const socket of sockets) {
    socket.terminate();
  }
  sockets.clear();
});

afterAll(async () => {
  await api?.close();
  await server?.process.stop();
  await host?.remove();
  await cluster?.kubectl(['delete', 'clusterrole', `only-get-${suffix}`]);
  await cluster?.kubectl(['delete', 'namespace', NAMESPACE, '--wait=false']);
  await cluster?.disconnect();
});

async function token(name: string, role?: string): Promise<string> {
  const membership = role === undefined ? undefined : { role };
  return await accountToken(cluster, { namespace: NAMESPACE, name }, membership);
}

/** Returns a screen that says its name, prints what it gets, and writes without an end if the test wants so. */
function makeScreen(): PassThrough {
  const screen = new PassThrough();
  screen.write('RFB 003.008\n');
  const fill = () => {
    while (!screen.destroyed && screen.write(Buffer.alloc(64 * KIBIBYTE))) {
      screenBytes += 64 * KIBIBYTE;
    }
  };
  if (isScreenEndless) {
    screen.on('drain', fill);
    fill();
  }
  return screen;
}

interface Opening {
  readonly token?: string;
  readonly origin?: string | undefined;
  readonly protocols?: readonly string[];
}

/** Begins a WebSocket as a browser does. */
function start(path: string, { token: bearer = member, protocols, ...opening }: Opening = {}): WebSocket {
  const stream = path.endsWith('/vnc') ? 'vnc' : 'console';
  const secret = TOKEN_PROTOCOL + Buffer.from(bearer).toString('base64url');
  const socket = new WebSocket(
    server.url.replace('https', 'wss') + path,
    [...(protocols ?? [PROTOCOLS[stream]]), ...(bearer === '' ? [] : [secret])],
    {
      ca: server.authority,
      origin: 'origin' in opening ? opening.origin : server.url,
      perMessageDeflate: false,
    },
  );
  sockets.add(socket);
  socket.on('error', () => undefined);
  return socket;
}

/** Opens a stream. Returns its socket, and a function that waits for bytes of a channel. */
async function open(path: string, opening?: Opening) {
  const socket = start(path, opening);
  const channels = new Map<number, Buffer>();
  socket.on('message', (message: Buffer) => {
    const [channel = -1] = message;
    channels.set(channel, Buffer.concat([channels.get(channel) ?? Buffer.alloc(0), message.subarray(1)]));
  });
  const closed = once(socket, 'close') as Promise<[number, Buffer]>;
  await once(socket, 'open');
  const shows = async (channel: number, text: string) => {
    while (channels.get(channel)?.includes(text) !== true) {
      const ended = closed.then(([code, reason]) => {
        throw new Error(`the stream has ended with ${code} ${reason.toString()}`);
      });
      await Promise.race([once(socket, 'message'), ended]);
    }
  };
  const end = async () => {
    const [code, reason] = await closed;
    return [code, reason.toString()];
  };
  return { socket, channels, shows, end };
}

/** Returns the status and the message with which a WebSocket is refused. */
async function refusal(path: string, opening?: Opening): Promise<[number | undefined, string]> {
  const socket = start(path, opening);
  const opened = once(socket, 'open').then(() => {
    throw new Error('the stream is open');
  });
  const [, response] = (await Promise.race([once(socket, 'unexpected-response'), opened])) as [
    unknown,
    IncomingMessage,
  ];
  const pieces = (await response.toArray()) as Buffer[];
  const { message } = JSON.parse(Buffer.concat(pieces).toString()) as { message: string };
  return [response.statusCode, message];
}

it('a console shows what is typed into it', async () => {
  const { socket, shows } = await open(PATHS.console);
  expect(socket.protocol).toBe(PROTOCOLS.console);
  socket.send(Buffer.from('\u0000echo'));
  await shows(1, 'echo');
});

it('a screen sends the messages of its protocol', async () => {
  const { shows, channels } = await open(PATHS.vnc);
  await shows(0, 'RFB 003.008\n');
  // The first message of a channel is the number of its port.
  expect(channels.get(0)?.readUInt16LE()).toBe(5999);
  expect(channels.get(1)?.readUInt16LE()).toBe(5999);
});

it.each([
  ['without a token', PATHS.console, { token: '' }, 401, /Unauthorized/],
  ['with an invented token', PATHS.console, { token: 'invented' }, 401, /Unauthorized/],
  [
    'from a page of another server',
    PATHS.console,
    { origin: 'https://evil.example' },
    403,
    /Only the console/,
  ],
  ['from no page', PATHS.vnc, { origin: undefined }, 403, /Only the console/],
  ['from a page without a server', PATHS.vnc, { origin: 'null' }, 403, /Only the console/],
  ['without the protocol', PATHS.vnc, { protocols: ['v5.channel.k8s.io'] }, 400, /must offer .* v4/],
  ['to a VM that does not exist', `${SCOPE}/nothing/console`, {}, 404, /"nothing" not found/],
  ['to a name of no VM', `${SCOPE}/..%2fdesk/console`, {}, 404, /not found/],
  [
    'to a namespace of others',
    '/console/streams/namespaces/kube-system/vms/desk/vnc',
    {},
    404,
    /kube-system/,
  ],
  ['with parameters', `${PATHS.vnc}?ports=22`, {}, 422, /ports/],
  ['to another stream', `${SCOPE}/desk/exec`, {}, 404, /not found/],
  ['to a Pod', `/console/streams/namespaces/${NAMESPACE}/pods/desk/attach`, {}, 404, /not found/],
])('refuses a stream %s', async (_, path, opening, status, message) => {
  expect(await refusal(path, opening)).toEqual([status, expect.stringMatching(message)]);
});

it.each(Object.entries(PATHS))('refuses the stream %s to those without the rights', async (_, path) => {
  expect(await refusal(path, { token: stranger })).toEqual([
    403,
    expect.stringContaining('cannot get resource "vms"'),
  ]);
  expect(await refusal(path, { token: viewer })).toEqual([
    403,
    expect.stringMatching(/cannot get resource "pods\//),
  ]);
  expect(await refusal(path, { token: reader })).toEqual([
    403,
    expect.stringMatching(/cannot create resource "pods\//),
  ]);
});

it('tells a page without a WebSocket why a stream is refused', async () => {
  const answer = async (token?: string) => {
    const { status, headers, body } = await api.call(PATHS.console, { token });
    return [status, headers['upgrade'], body.message];
  };
  expect(await answer(member)).toEqual([426, 'websocket', 'This path takes a WebSocket']);
  expect(await answer(viewer)).toEqual([403, undefined, expect.stringContaining('pods/attach')]);
  expect((await answer())[0]).toBe(401);
});

/** Sends a request for a WebSocket with these headers, and returns the status. */
async function handshake(path: string, headers: Record<string, string>): Promise<number | undefined> {
  const sent = request(server.url + path, {
    ca: server.authority,
    headers: {
      connection: 'Upgrade',
      upgrade: 'websocket',
      authorization: `Bearer ${member}`,
      origin: server.url,
      'sec-websocket-protocol': PROTOCOLS.vnc,
      'sec-websocket-version': '13',
      'sec-websocket-key': randomBytes(16).toString('base64'),
      ...headers,
    },
  });
  const accepted = once(sent, 'upgrade').then(([response, socket]) => {
    (socket as Socket).destroy();
    return response as IncomingMessage;
  });
  const refused = once(sent, 'response').then(([response]) => response as IncomingMessage);
  sent.end();
  const { statusCode } = await Promise.race([accepted, refused]);
  return statusCode;
}

it('refuses handshakes with mistakes, and answers other paths as without an upgrade', async () => {
  expect(await handshake(PATHS.vnc, {})).toBe(101);
  expect(await handshake(PATHS.vnc, { 'sec-websocket-version': '7' })).toBe(400);
  expect(await handshake(PATHS.vnc, { 'sec-websocket-key': 'x' })).toBe(400);
  expect(await handshake(PATHS.vnc, { 'sec-websocket-protocol': ',,' + ' '.repeat(8_000) })).toBe(400);
  expect(await handshake(PATHS.vnc, { upgrade: 'h2c' })).toBe(426);
  expect(await handshake('/console/session', {})).toBe(200);
});

it('tells in the words of the host why a stream does not begin', async () => {
  const { end } = await open(`${SCOPE}/waits/vnc`);
  expect(await end()).toEqual([1011, 'pods "waits" not found']);
  const first = await open(PATHS.console);
  first.socket.send(Buffer.from('\u0000mine'));
  await first.shows(1, 'mine');
  const second = await open(PATHS.console, { token: other });
  await second.end();
  // The API server puts the answer of the host into the last channel.
  expect(second.channels.get(3)?.toString()).toContain('Another user types into this console');
});

it('bounds the streams of one user, and leaves room for another one', async () => {
  const many = await Promise.all(Array.from({ length: USER_STREAMS }, () => open(PATHS.vnc)));
  expect(await refusal(PATHS.vnc)).toEqual([
    429,
    expect.stringContaining(`${USER_STREAMS} requests of user`),
  ]);
  many[0]?.socket.close();
  await many[0]?.end();
  const { shows } = await open(PATHS.vnc, { token: other });
  await shows(0, 'RFB');
  await waitFor('a place to be free', async () => {
    const { socket } = await open(PATHS.vnc);
    return socket.readyState === WebSocket.OPEN;
  });
});

it('ends a stream with a message that is too long, and only this one', async () => {
  const bystander = await open(PATHS.vnc, { token: other });
  const { socket, end } = await open(PATHS.console);
  socket.send(Buffer.alloc(129 * KIBIBYTE));
  expect((await end())[0]).toBe(1009);
  await bystander.shows(0, 'RFB');
});

it('keeps little of what a client does not read', async () => {
  isScreenEndless = true;
  const { socket, shows } = await open(PATHS.vnc);
  await shows(0, 'RFB');
  socket.pause();
  let before = -1;
  await waitFor('the host to stop', async () => {
    const isStill = before === screenBytes;
    before = screenBytes;
    return isStill;
  });
  expect(screenBytes).toBeLessThan(32 * KIBIBYTE * KIBIBYTE);
  const { shows: showsToOther } = await open(PATHS.vnc, { token: other });
  await showsToOther(0, 'RFB');
});

/** Reads the log of a VM until a text is in it. */
async function readLog(path: string, text: string, bearer = member): Promise<string> {
  const end = new AbortController();
  const { statusCode, body } = await api.open(path, { token: bearer, signal: end.signal });
  body.on('error', () => undefined);
  let log = '';
  for await (const piece of body.setEncoding('utf8') as AsyncIterable<string>) {
    log += piece;
    if (log.includes(text)) {
      break;
    }
  }
  end.abort();
  return `${statusCode} ${log}`;
}

it('shows the log of a VM to those who may read it, and nothing else', async () => {
  const path = `/console/logs/namespaces/${NAMESPACE}/vms/desk`;
  expect(await readLog(path, 'console')).toMatch(/^200 \n.*a line of the console\n/);
  expect(await readLog(`${path}?sinceTime=2026-11-22T10:00:00Z`, 'console')).toMatch(/^200 \n/);
  expect(await readLog(path, 'pods/log', reader)).toMatch(/^403 .*cannot get resource .*pods\/log/);
  expect(await readLog(path, 'vms', stranger)).toMatch(/^403 /);
  expect(await readLog(`/console/logs/namespaces/${NAMESPACE}/vms/waits`, 'waits')).toMatch(/^404 .*waits/);
  expect(await readLog(`/console/logs/namespaces/${NAMESPACE}/vms/..%2fdesk`, 'not found')).toMatch(/^404 /);
  expect(await readLog('/console/logs/namespaces/kube-system/vms/desk', 'kube')).toMatch(/^404 /);
  expect(await readLog(`${path}?sinceTime=yesterday`, 'sinceTime')).toMatch(
    /^4\d\d .*sinceTime: must be a time/,
  );
  expect(await readLog(`${path}?container=other`, 'container')).toMatch(/^4\d\d .*container/);
  expect((await api.call(path)).status).toBe(401);
});

it('survives bytes that are no WebSocket', async () => {
  const { socket, end } = await open(PATHS.vnc);
  (socket as unknown as { _socket: Socket })._socket.write(randomBytes(1_000));
  expect([1002, 1006]).toContain((await end())[0]);
  expect((await api.call(PATHS.vnc, { token: member })).status).toBe(426);
});

it('ends streams when the server stops, and has written no token to its log', async () => {
  const { end } = await open(PATHS.vnc);
  await server.process.stop();
  expect(await end()).toEqual([1001, 'The HTTP API is stopping. Connect again']);
  const log = await readFile(server.process.logFile, 'utf8');
  for (const secret of [member, Buffer.from(member).toString('base64url')]) {
    expect(log).not.toContain(secret);
  }
});
