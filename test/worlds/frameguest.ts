/**
 * A guest that sends exactly the frames that a test requests. QEMU runs without a machine and passes frames between the tap and a
 * socket. The guest answers ARP for its address and echoes datagrams; the test does everything else.
 */
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import {
  arp,
  BROADCAST,
  type Endpoint,
  ETHERTYPE,
  ethernet,
  macText,
  NO_CARD,
  PROTOCOL,
  type Station,
  udp,
} from '../wires/frames.ts';
import { waitFor } from '../../hack/wait.ts';

export interface FrameGuestOptions {
  /** Starts QEMU in the right namespace. */
  spawn: (file: string, args: string[]) => ChildProcess;
  /** Network backend of QEMU with id=net, for example a tap. Frames are sent and received there. */
  backend: string;
  /** Further arguments of QEMU. */
  arguments?: string[];
  socketPath: string;
  macAddress: string;
  address: string;
}

/** Returns the argument {@link FrameGuestOptions.backend} for a tap. */
export function tapBackend(tap: string): string {
  return `tap,id=net,ifname=${tap},script=no,downscript=no`;
}

export class FrameGuest {
  /** Payloads of the received datagrams. */
  readonly received: string[] = [];
  /** All received frames. */
  readonly frames: Buffer[] = [];
  readonly #options: FrameGuestOptions;
  readonly #qemu: ChildProcess;
  readonly #socket: Socket;
  /** MAC addresses from ARP, by IP address. */
  readonly neighbours = new Map<string, string>();
  #buffer = Buffer.alloc(0);

  static async start(options: FrameGuestOptions): Promise<FrameGuest> {
    const server = createServer().listen(options.socketPath);
    await once(server, 'listening');
    const netdevs = [
      options.backend,
      `stream,id=stream,server=off,addr.type=unix,addr.path=${options.socketPath}`,
      'hubport,id=h1,hubid=0,netdev=net',
      'hubport,id=h2,hubid=0,netdev=stream',
    ].flatMap((one) => ['-netdev', one]);
    const bare = ['-machine', 'none', '-display', 'none', '-nodefaults'];
    const qemu = options.spawn('qemu-system-x86_64', [...bare, ...netdevs, ...(options.arguments ?? [])]);
    const socket = await connected(server, qemu);
    return new FrameGuest(options, qemu, socket);
  }

  private constructor(options: FrameGuestOptions, qemu: ChildProcess, socket: Socket) {
    this.#options = options;
    this.#qemu = qemu;
    this.#socket = socket;
    socket.on('data', (chunk) => this.#receive(chunk));
    socket.on('error', () => undefined);
  }

  async stop(): Promise<void> {
    this.#socket.destroy();
    if (this.#qemu.exitCode !== null || this.#qemu.signalCode !== null) {
      return;
    }
    const ended = once(this.#qemu, 'exit');
    this.#qemu.kill('SIGKILL');
    await ended;
  }

  /** Sends ARP requests until an answer arrives, and returns the MAC address. */
  async resolve(address: string, o: { deadlineMilliseconds: number }): Promise<string> {
    return await waitFor(
      `an ARP answer for ${address}`,
      () => {
        this.#sendArp(BROADCAST, 1, { mac: NO_CARD, address });
        return this.neighbours.get(address);
      },
      o,
    );
  }

  /** Sends one datagram through the neighbour with this MAC address. `lies` can replace the sender's MAC address, IP address and port. */
  sendDatagram(
    via: string,
    to: Endpoint,
    text: string,
    lies: { macAddress?: string; address?: string; port?: number } = {},
  ): void {
    const from = { address: lies.address ?? this.#options.address, port: lies.port ?? 5000 };
    this.sendPacket(via, udp(from, to, Buffer.from(text)), lies.macAddress);
  }

  /** Sends one IPv4 packet through the neighbour with this MAC address. */
  sendPacket(via: string, packet: Buffer, macAddress = this.#options.macAddress): void {
    this.send(ethernet({ to: via, from: macAddress, type: ETHERTYPE.ipv4 }, packet));
  }

  /** Sends any frame unchanged. */
  send(frame: Buffer): void {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(frame.length);
    this.#socket.write(Buffer.concat([length, frame]));
  }

  #sendArp(to: string, operation: 1 | 2, target: Station): void {
    const { macAddress, address } = this.#options;
    const body = arp(operation, { mac: macAddress, address }, target);
    this.send(ethernet({ to, from: macAddress, type: ETHERTYPE.arp }, body));
  }

  #receive(chunk: Buffer): void {
    this.#buffer = Buffer.concat([this.#buffer, chunk]);
    while (this.#buffer.length >= 4) {
      const length = this.#buffer.readUInt32BE(0);
      if (this.#buffer.length < 4 + length) {
        return;
      }
      const frame = this.#buffer.subarray(4, 4 + length);
      this.frames.push(frame);
      this.#handle(frame);
      this.#buffer = this.#buffer.subarray(4 + length);
    }
  }

  #handle(frame: Buffer): void {
    const sender = macText(frame.subarray(6, 12));
    const type = frame.readUInt16BE(12);
    const body = frame.subarray(14);
    if (type === ETHERTYPE.arp) {
      this.#handleArp(body);
    } else if (type === ETHERTYPE.ipv4 && body[9] === PROTOCOL.udp) {
      this.#handleDatagram(sender, body);
    }
  }

  #handleArp(body: Buffer): void {
    const sender = { mac: macText(body.subarray(8, 14)), address: body.subarray(14, 18).join('.') };
    this.neighbours.set(sender.address, sender.mac);
    if (body[7] !== 1 || body.subarray(24, 28).join('.') !== this.#options.address) {
      return;
    }
    this.#sendArp(sender.mac, 2, sender);
  }

  #handleDatagram(via: string, body: Buffer): void {
    if (body.subarray(16, 20).join('.') !== this.#options.address) {
      return;
    }
    const segment = body.subarray(20);
    const payload = segment.subarray(8, segment.readUInt16BE(4));
    this.received.push(payload.toString());
    const from = { address: this.#options.address, port: segment.readUInt16BE(2) };
    const to = { address: body.subarray(12, 16).join('.'), port: segment.readUInt16BE(0) };
    this.sendPacket(via, udp(from, to, payload));
  }
}

/** Returns QEMU's connection. The server accepts no other connection. */
async function connected(server: Server, qemu: ChildProcess): Promise<Socket> {
  const ended = once(qemu, 'exit').then(([code]) => {
    throw new Error(`the frame guest's QEMU ended with ${String(code)}`);
  });
  try {
    const [socket] = (await Promise.race([once(server, 'connection'), ended])) as [Socket];
    return socket;
  } finally {
    ended.catch(() => undefined);
    server.close();
  }
}
