/**
 * The VNC server of the stand-in for `tart`: RFC 6143 with a password alone. The screen has one colour, which the last key chooses. The server
 * sends pictures in the raw encoding and in two halves.
 */
import { createCipheriv, randomBytes, randomInt } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { ByteReader } from '../../../../base/bytereader.ts';

/** Size of the screen in pixels. */
export const SCREEN = { width: 64, height: 48 };
const VERSION = 'RFB 003.008\n';
const SYLLABLES = ['able', 'about', 'above', 'absent', 'abstract', 'action', 'actor', 'adapt'];
/** Lengths of the messages of a client after their type. */
const LENGTHS: Readonly<Record<number, number>> = { 0: 19, 2: 3, 3: 9, 4: 7, 5: 5, 6: 7 };

/** Begins to serve the screen on a port of the loopback address. Returns its address with the password, as the program prints it. */
export async function serveScreen(): Promise<string> {
  const password = Array.from({ length: 4 }, () => SYLLABLES[randomInt(SYLLABLES.length)]).join('-');
  const screen = { color: 0 };
  const server = createServer((client) => {
    serve(client.unref(), password, screen).catch(() => client.destroy());
  });
  server.listen(0, '127.0.0.1').unref();
  await once(server, 'listening');
  return `vnc://:${password}@127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function serve(client: Socket, password: string, screen: { color: number }): Promise<void> {
  client.on('error', () => client.destroy());
  const bytes = new ByteReader(client);
  client.write(VERSION);
  await bytes.read(VERSION.length);
  client.write(Buffer.of(1, 2));
  await bytes.read(1);
  const challenge = randomBytes(16);
  client.write(challenge);
  const isRight = (await bytes.read(16)).equals(encrypted(challenge, password));
  client.write(Buffer.of(0, 0, 0, isRight ? 0 : 1));
  if (!isRight) {
    client.end();
    return;
  }
  await bytes.read(1);
  const init = Buffer.alloc(24 + 4);
  init.writeUInt16BE(SCREEN.width, 0);
  init.writeUInt16BE(SCREEN.height, 2);
  init.writeUInt32BE(4, 20);
  init.write('tart', 24);
  client.write(init);
  for (;;) {
    const [type] = await bytes.read(1);
    if (type === undefined) {
      return;
    }
    const rest = await bytes.read(LENGTHS[type] ?? 0);
    if (type === 2) {
      await bytes.read(rest.readUInt16BE(1) * 4);
    } else if (type === 4 && rest[0] === 1) {
      screen.color = rest.readUInt32BE(3) & 0xff;
    } else if (type === 3) {
      // A bell and a clipboard come before the picture.
      client.write(Buffer.concat([Buffer.of(2, 3, 0, 0, 0, 0, 0, 0, 2), Buffer.from('hi')]));
      client.write(picture(screen.color));
    }
  }
}

/** Returns an update of the whole screen in two halves. Its red is the colour, and its blue is the line. */
function picture(color: number): Buffer {
  const half = SCREEN.height / 2;
  const halves = [0, half].map((y) => {
    const head = Buffer.alloc(12);
    [0, y, SCREEN.width, half].forEach((value, index) => head.writeUInt16BE(value, index * 2));
    const lines = Array.from({ length: half }, (_, line) =>
      Buffer.concat(Array.from({ length: SCREEN.width }, () => Buffer.of(color, 0, y + line, 0))),
    );
    return Buffer.concat([head, ...lines]);
  });
  return Buffer.concat([Buffer.of(0, 0, 0, 2), ...halves]);
}

/** DES of the challenge with the first eight characters, whose bits VNC reads in reverse. */
function encrypted(challenge: Buffer, password: string): Buffer {
  const key = Buffer.alloc(8);
  key.write(password.slice(0, 8), 'latin1');
  const reversed = key.map((byte) =>
    [0, 1, 2, 3, 4, 5, 6, 7].reduce((sum, bit) => sum | (((byte >> bit) & 1) << (7 - bit)), 0),
  );
  const cipher = createCipheriv('des-ede3-ecb', Buffer.concat([reversed, reversed, reversed]), null);
  return Buffer.concat([cipher.setAutoPadding(false).update(challenge), cipher.final()]);
}
