/** A VNC client that only logs in with a password (RFC 6143, sections 7.1 and 7.2.2). */
import { createCipheriv } from 'node:crypto';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';

const VERSION = 'RFB 003.008\n';
const PASSWORD_SECURITY = 2;
const CHALLENGE_BYTES = 16;
/** Time limit of one answer of the server. On a busy machine QEMU may answer after seconds. */
const ANSWER_MILLISECONDS = 60_000;

/** Logs in to a VNC server and returns whether the server accepts the password. @throws Error when it offers another type of security. */
export async function logIn(host: string, port: number, password: string): Promise<boolean> {
  const socket = connect({ host, port });
  try {
    await read(socket, VERSION.length);
    socket.write(VERSION);
    const [count = 0] = await read(socket, 1);
    const offered = [...(await read(socket, count))];
    if (offered.join() !== String(PASSWORD_SECURITY)) {
      throw new Error(`the server offers the security types ${offered.join()}`);
    }
    socket.write(Buffer.of(PASSWORD_SECURITY));
    socket.write(answer(await read(socket, CHALLENGE_BYTES), password));
    return (await read(socket, 4)).readUInt32BE() === 0;
  } finally {
    socket.destroy();
  }
}

async function read(socket: Socket, bytes: number): Promise<Buffer> {
  for (;;) {
    const data = socket.read(bytes) as Buffer | null;
    if (data !== null) {
      return data;
    }
    await once(socket, 'readable', { signal: AbortSignal.timeout(ANSWER_MILLISECONDS) });
  }
}

/** DES of the challenge. VNC uses the bits of each byte of the key in reverse. DES three times with one key is DES. */
function answer(challenge: Buffer, password: string): Buffer {
  const key = Buffer.alloc(8);
  key.write(password, 'latin1');
  for (const [index, byte] of key.entries()) {
    key[index] = Number.parseInt(byte.toString(2).padStart(8, '0').split('').toReversed().join(''), 2);
  }
  const cipher = createCipheriv('des-ede3-ecb', Buffer.concat([key, key, key]), null).setAutoPadding(false);
  return Buffer.concat([cipher.update(challenge), cipher.final()]);
}
