/**
 * The guest agent of the stand-in for `tart`: gRPC over HTTP/2 on the control socket of a machine, as the tart-guest-agent serves it. Its guest
 * knows a few commands. The messages are made here by hand, so that the agent is not tested with its own code.
 */
import { createServer, type ServerHttp2Stream } from 'node:http2';
import { spawnSync } from 'node:child_process';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Stands for the first field of an empty message. */
const NOTHING = [0, Buffer.alloc(0)] as const;

interface Result {
  code: number;
  out?: string | Buffer;
  err?: string;
}

/** What the guest does with a command: its name with the parameters, and its input. The result is undefined for a command that the guest does not have. */
type Commands = (parameters: readonly string[], input: Buffer) => Result | undefined | 'never';

/** Serves the guest agent on the socket. `home` is the home folder of its user. `shutDown` is called when the guest powers off. */
export async function serveGuestAgent(socket: string, home: string, shutDown: () => void): Promise<void> {
  rmSync(socket, { force: true });
  const commands = guest(home, shutDown);
  const server = createServer();
  server.on('session', (session) => session.unref());
  server.on('stream', (stream, headers) => {
    stream.on('error', () => undefined);
    if (headers[':path'] === '/Agent/ResolveIP') {
      answer(stream, [field(1, Buffer.from('192.168.64.7'))]);
    } else {
      execute(stream, commands);
    }
  });
  await new Promise<void>((resolve) => server.listen(socket, resolve));
  server.unref();
}

/** Runs a script in a real shell, in which the name of the user is `admin`. */
function runShell(home: string, parameters: readonly string[], input: Buffer): Result {
  const programs = join(home, 'bin');
  mkdirSync(programs, { recursive: true });
  writeFileSync(join(programs, 'id'), '#!/bin/sh\n[ "$1" = -un ] && echo admin || echo 501\n', {
    mode: 0o755,
  });
  const environment = { PATH: `${programs}:/usr/bin:/bin`, HOME: home };
  const { status, stdout, stderr } = spawnSync('sh', parameters, { input, env: environment });
  return { code: status ?? -1, out: stdout, err: String(stderr) };
}

function guest(home: string, shutDown: () => void): Commands {
  const texts: Readonly<Record<string, Result>> = {
    hostname: { code: 0, out: 'macs-virtual-machine.local\n' },
    sw_vers: { code: 0, out: 'ProductName:\t\tmacOS\nProductVersion:\t\t15.1\nBuildVersion:\t\t24B83\n' },
    'cat /etc/os-release': { code: 0, out: 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n' },
    fails: { code: 3, out: 'said\n', err: 'complained\n' },
    killed: { code: -1 },
    flood: { code: 0, out: Buffer.alloc(6 * 1024 * 1024, 'x') },
  };
  return (parameters, input) => {
    const line = parameters.join(' ');
    if (line === 'sudo -n shutdown -h now') {
      setImmediate(shutDown);
      return 'never';
    }
    if (line === 'sleep') {
      return 'never';
    }
    if (parameters[0] === 'sh') {
      return runShell(home, parameters.slice(1), input);
    }
    return line === 'cat' ? { code: 0, out: input } : texts[line];
  };
}

function execute(stream: ServerHttp2Stream, commands: Commands): void {
  let bytes = Buffer.alloc(0);
  let parameters: string[] = [];
  const input: Buffer[] = [];
  const run = (): void => {
    const result = commands(parameters, Buffer.concat(input));
    if (result === undefined) {
      answer(stream, [], {
        'grpc-status': '2',
        'grpc-message': `exec: "${parameters[0]}": executable file not found`,
      });
    } else if (result !== 'never') {
      answer(stream, responses(result));
    }
  };
  stream.on('data', (piece: Buffer) => {
    bytes = Buffer.concat([bytes, piece]);
    while (bytes.length >= 5 && bytes.length >= 5 + bytes.readUInt32BE(1)) {
      const message = bytes.subarray(5, 5 + bytes.readUInt32BE(1));
      bytes = bytes.subarray(5 + message.length);
      const [kind, content] = fields(message)[0] ?? NOTHING;
      if (kind === 1) {
        const parts = fields(content as Buffer);
        parameters = parts.filter(([number]) => number < 3).map(([, value]) => String(value));
        const isInteractive = parts.some(([number, value]) => number === 3 && value === 1);
        if (!isInteractive) {
          run();
        }
      } else {
        const [, data] = fields(content as Buffer)[0] ?? NOTHING;
        input.push(data as Buffer);
        if ((data as Buffer).length === 0) {
          run();
        }
      }
    }
  });
}

/** Returns the messages about a command: output in pieces of 4 KiB, and the exit code, which is left out if it is 0. */
function responses({ code, out = '', err = '' }: Result): Buffer[] {
  const pieces = (number: number, text: Buffer): Buffer[] =>
    Array.from({ length: Math.ceil(text.length / 4096) }, (_, at) =>
      field(number, field(1, text.subarray(at * 4096, (at + 1) * 4096))),
    );
  const exit =
    code === 0 ? Buffer.alloc(0) : Buffer.concat([Buffer.of(8), varint(BigInt.asUintN(64, BigInt(code)))]);
  return [...pieces(2, Buffer.from(out)), ...pieces(3, Buffer.from(err)), field(1, exit)];
}

function answer(
  stream: ServerHttp2Stream,
  messages: readonly Buffer[],
  trailers: Record<string, string> = { 'grpc-status': '0' },
): void {
  stream.on('wantTrailers', () => stream.sendTrailers(trailers));
  stream.respond({ ':status': 200, 'content-type': 'application/grpc' }, { waitForTrailers: true });
  for (const message of messages) {
    const head = Buffer.alloc(5);
    head.writeUInt32BE(message.length, 1);
    stream.write(Buffer.concat([head, message]));
  }
  stream.end();
}

function field(number: number, content: Buffer): Buffer {
  return Buffer.concat([Buffer.of((number << 3) | 2), varint(BigInt(content.length)), content]);
}

function varint(value: bigint): Buffer {
  const bytes: number[] = [];
  let rest = value;
  for (; rest > 0x7fn; rest >>= 7n) {
    bytes.push(Number(rest & 0x7fn) | 0x80);
  }
  return Buffer.of(...bytes, Number(rest));
}

/** Returns the fields of a message: numbers and bytes. */
function fields(message: Buffer): [number, number | Buffer][] {
  const found: [number, number | Buffer][] = [];
  let at = 0;
  const number = (): number => {
    let value = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = message[at] ?? 0;
      at += 1;
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) {
        return value;
      }
    }
  };
  while (at < message.length) {
    const key = number();
    if ((key & 7) === 0) {
      found.push([key >> 3, number()]);
    } else {
      const length = number();
      found.push([key >> 3, message.subarray(at, at + length)]);
      at += length;
    }
  }
  return found;
}
