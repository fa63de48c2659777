/** A scripted Android device for ADB on a TCP port. It boots when the test decides. */
import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import {
  ADB_VERSION,
  encodeMessage,
  LARGEST_PAYLOAD,
  readMessages,
} from '../../agent/drivers/emulator/adb.ts';

const BANNER = Buffer.from('device::ro.product.name=stand-in;features=shell_v2');
/** Number that the device gave to its stream. */
const STREAM = 7;

/** Plays the device in one connection. */
export type AdbPlay = (socket: Socket, device: AdbDevice) => Promise<void> | void;

export class AdbDevice {
  /** Whether Android has booted. */
  booted = false;
  /** Commands that were asked for, for example `shell:getprop sys.boot_completed`. */
  readonly asked: string[] = [];
  /** Function that plays the device in new connections. */
  play: AdbPlay = answer;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(server: Server) {
    this.#server = server;
  }

  /** Listens at an address. Port 0 means any free port. */
  static async listen(host: string, port: number): Promise<AdbDevice> {
    const server = createServer();
    const device = new AdbDevice(server);
    server.on('connection', (socket) => {
      device.#sockets.add(socket);
      // A peer may hang up at any time.
      socket.on('error', () => undefined);
      socket.once('close', () => device.#sockets.delete(socket));
      Promise.resolve(device.play(socket, device)).catch(() => socket.destroy());
    });
    server.unref();
    server.listen(port, host);
    await once(server, 'listening');
    return device;
  }

  get port(): number {
    const address = this.#server.address();
    return typeof address === 'object' && address !== null ? address.port : 0;
  }

  async close(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    for (const socket of this.#sockets) {
      socket.destroy();
    }
    await closed;
  }
}

/** Answers as `adbd` does: the banner, and for each command whether Android has booted. */
async function answer(socket: Socket, device: AdbDevice): Promise<void> {
  for await (const { command, arg0, payload } of readMessages(socket)) {
    if (command === 'CNXN') {
      socket.write(encodeMessage('CNXN', ADB_VERSION, LARGEST_PAYLOAD, BANNER));
    } else if (command === 'OPEN') {
      device.asked.push(payload.toString('latin1').replace('\0', ''));
      socket.write(encodeMessage('OKAY', STREAM, arg0));
      socket.write(encodeMessage('WRTE', STREAM, arg0, Buffer.from(device.booted ? '1\n' : '\n')));
      socket.write(encodeMessage('CLSE', STREAM, arg0));
    }
  }
}
