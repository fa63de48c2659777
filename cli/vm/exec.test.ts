import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { appendFile, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type WebSocket, WebSocketServer } from 'ws';
import { COMMAND_PROTOCOL } from '../../kube/channelprotocol.ts';
import { Transport } from '../../kube/transport.ts';
import type { UserCluster } from '../cluster.ts';
import { CommandError, EXIT, ProgramEnded } from '../errors.ts';
import { ADD_KEY_SCRIPT, runSession } from './exec.ts';

const SIZE = 4;
const STATUS = 3;
/** Time limit of a session that must end by itself. */
const END_MILLISECONDS = 30_000;

let server: Server;
let watches: Transport;
let onSession: (host: WebSocket) => void;

beforeEach(async () => {
  server = createServer();
  new WebSocketServer({ server, handleProtocols: () => COMMAND_PROTOCOL }).on('connection', (host) =>
    onSession(host),
  );
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  watches = new Transport({ server: `http://127.0.0.1:${port}` }, { metrics: new Registry() });
});

afterEach(async () => {
  await watches.close();
  server.closeAllConnections();
  server.close();
});

/** Resolves with the error of a session without input. The result is undefined if the session succeeded. */
async function session(): Promise<unknown> {
  const request = { name: 'desk', path: '/exec', tty: false, input: false };
  return await runSession({ watches } as UserCluster, request, AbortSignal.timeout(END_MILLISECONDS)).then(
    () => undefined,
    (error: unknown) => error,
  );
}

function send(host: WebSocket, channel: number, content: string | Buffer): void {
  host.send(Buffer.concat([Buffer.from([channel]), Buffer.from(content)]));
}

function endWith(host: WebSocket, code: string): void {
  const causes = [{ reason: 'ExitCode', message: code }];
  const status = {
    status: 'Failure',
    reason: 'NonZeroExitCode',
    message: `exit code ${code}`,
    details: { causes },
  };
  send(host, STATUS, JSON.stringify(status));
  host.close();
}

it('ends with the exit code of the command, and never with 0 for a command that failed', async () => {
  onSession = (host) => endWith(host, '255');
  expect(await session()).toMatchObject({ exitCode: 255, name: ProgramEnded.name });
  for (const code of ['256', '0']) {
    onSession = (host) => endWith(host, code);
    expect(await session()).toMatchObject({ exitCode: EXIT.failed, name: CommandError.name });
  }
});

it('goes on when a host fills a channel on which only the caller writes', async () => {
  onSession = (host) => {
    send(host, SIZE, Buffer.alloc(256 * 1024));
    host.once('pong', () => {
      send(host, STATUS, '{"status":"Success"}');
      host.close();
    });
    host.ping();
  };
  expect(await session()).toBeUndefined();
});

it('adds a key in a guest as its user, once, after a last line without an end', async () => {
  const home = await mkdtemp(join(tmpdir(), 'berth-keys-'));
  try {
    // As su does it, the stub runs the commands with the home of the user.
    const su = '#!/bin/sh\n[ "$1 $2 $3 $4" = "-s /bin/sh ann -c" ] && exec /bin/sh -c "$5"\nexit 9\n';
    await writeFile(join(home, 'su'), su, { mode: 0o755 });
    const env = { PATH: `${home}:${process.env.PATH}`, HOME: home };
    const file = join(home, '.ssh', 'authorized_keys');
    const add = (key: string) => execFileSync('/bin/sh', ['-c', ADD_KEY_SCRIPT, 'sh', 'ann', key], { env });
    add(`ssh-ed25519 AAAA it's "$(id)" mine`);
    expect((await stat(file)).mode & 0o777).toBe(0o600);
    await appendFile(file, 'ssh-rsa BBBB');
    add('ssh-ed25519 CCCC');
    add('ssh-ed25519 CCCC');
    const lines = [`ssh-ed25519 AAAA it's "$(id)" mine`, 'ssh-rsa BBBB', 'ssh-ed25519 CCCC', ''];
    expect(await readFile(file, 'utf8')).toBe(lines.join('\n'));
  } finally {
    await rm(home, { recursive: true });
  }
});
