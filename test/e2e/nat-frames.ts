/**
 * A guest that sends exactly the frames it is told to: QEMU without a machine, passing frames between the tap and a
 * socket. It answers ARP for its address and echoes datagrams; everything else is the test's.
 */
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import { waitFor } from '../support/wait.ts';

export interface FrameGuestOptions {
  /** Starts QEMU in the right namespace. */
  spawn: (file: string, args: string[]) => ChildProcess;
  tap: string;
  socketPath: string;
  macAddress: string;
  address: string;
}

const ETHERTYPE_IP = 0x0800;
const ETHERTYPE_ARP = 0x0806;
const PROTOCOL_UDP = 17;
const BROADCAST = 'ff:ff:ff:ff:ff:ff';

function macBytes(mac: string): Buffer {
  return Buffer.from(mac.replaceAll(':', ''), 'hex');
}

function addressBytes(address: string): Buffer {
  return Buffer.from(address.split('.').map(Number));
}

function checksum(header: Buffer): number {
  let sum = 0;
  for (let i = 0; i < header.length; i += 2) sum += header.readUInt16BE(i);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return ~sum & 0xffff;
}

interface Endpoint {
  address: string;
  port: number;
}

function datagram(from: Endpoint, to: Endpoint, payload: Buffer): Buffer {
  const udp = Buffer.alloc(8);
  udp.writeUInt16BE(from.port, 0);
  udp.writeUInt16BE(to.port, 2);
  udp.writeUInt16BE(8 + payload.length, 4);
  const ip = Buffer.alloc(20);
  ip[0] = 0x45;
  ip.writeUInt16BE(28 + payload.length, 2);
  ip[8] = 64;
  ip[9] = PROTOCOL_UDP;
  addressBytes(from.address).copy(ip, 12);
  addressBytes(to.address).copy(ip, 16);
  ip.writeUInt16BE(checksum(ip), 10);
  return Buffer.concat([ip, udp, payload]);
}

function arp(
  operation: 1 | 2,
  sender: { mac: Buffer; address: Buffer },
  target: { mac: Buffer; address: Buffer },
): Buffer {
  const head = Buffer.from([0, 1, 8, 0, 6, 4, 0, operation]);
  return Buffer.concat([head, sender.mac, sender.address, target.mac, target.address]);
}

export class FrameGuest {
  /** Payloads of the datagrams that have come. */
  readonly received: string[] = [];
  readonly #options: FrameGuestOptions;
  readonly #qemu: ChildProcess;
  readonly #socket: Socket;
  /** By address, as told by ARP. */
  readonly neighbours = new Map<string, string>();
  #buffer = Buffer.alloc(0);

  static async start(options: FrameGuestOptions): Promise<FrameGuest> {
    const server = createServer().listen(options.socketPath);
    await once(server, 'listening');
    const netdevs = [
      `tap,id=tap,ifname=${options.tap},script=no,downscript=no`,
      `stream,id=stream,server=off,addr.type=unix,addr.path=${options.socketPath}`,
      'hubport,id=h1,hubid=0,netdev=tap',
      'hubport,id=h2,hubid=0,netdev=stream',
    ].flatMap((one) => ['-netdev', one]);
    const bare = ['-machine', 'none', '-display', 'none', '-nodefaults'];
    const qemu = options.spawn('qemu-system-x86_64', [...bare, ...netdevs]);
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
    if (this.#qemu.exitCode !== null || this.#qemu.signalCode !== null) return;
    const ended = once(this.#qemu, 'exit');
    this.#qemu.kill('SIGKILL');
    await ended;
  }

  /** Asks by ARP until answered. */
  async resolve(address: string, o: { deadlineMilliseconds: number }): Promise<string> {
    return waitFor(
      `an ARP answer for ${address}`,
      () => {
        const own = { mac: macBytes(this.#options.macAddress), address: addressBytes(this.#options.address) };
        this.#sendFrame(
          BROADCAST,
          ETHERTYPE_ARP,
          arp(1, own, { mac: Buffer.alloc(6), address: addressBytes(address) }),
        );
        return this.neighbours.get(address);
      },
      o,
    );
  }

  /** One datagram through the neighbour with this MAC; source MAC and address may be lies. */
  sendDatagram(
    via: string,
    to: Endpoint,
    text: string,
    lies: { macAddress?: string; address?: string; port?: number } = {},
  ): void {
    const from = { address: lies.address ?? this.#options.address, port: lies.port ?? 5000 };
    this.#sendFrame(via, ETHERTYPE_IP, datagram(from, to, Buffer.from(text)), lies.macAddress);
  }

  /** Asks by ARP for an address, pretending to have another than its own; who hears it would remember that. */
  pretend(address: string, asked: string): void {
    const lie = { mac: macBytes(this.#options.macAddress), address: addressBytes(address) };
    const target = { mac: Buffer.alloc(6), address: addressBytes(asked) };
    this.#sendFrame(BROADCAST, ETHERTYPE_ARP, arp(1, lie, target));
  }

  #sendFrame(to: string, type: number, body: Buffer, macAddress = this.#options.macAddress): void {
    const head = Buffer.concat([macBytes(to), macBytes(macAddress), Buffer.from([type >> 8, type & 255])]);
    const frame = Buffer.concat([head, body]);
    const length = Buffer.alloc(4);
    length.writeUInt32BE(frame.length);
    this.#socket.write(Buffer.concat([length, frame]));
  }

  #receive(chunk: Buffer): void {
    this.#buffer = Buffer.concat([this.#buffer, chunk]);
    while (this.#buffer.length >= 4) {
      const length = this.#buffer.readUInt32BE(0);
      if (this.#buffer.length < 4 + length) return;
      this.#handle(this.#buffer.subarray(4, 4 + length));
      this.#buffer = this.#buffer.subarray(4 + length);
    }
  }

  #handle(frame: Buffer): void {
    const sender = frame.subarray(6, 12);
    const type = frame.readUInt16BE(12);
    const body = frame.subarray(14);
    if (type === ETHERTYPE_ARP) this.#handleArp(body);
    else if (type === ETHERTYPE_IP && body[9] === PROTOCOL_UDP)
      this.#handleDatagram(sender.toString('hex'), body);
  }

  #handleArp(body: Buffer): void {
    const sender = { mac: body.subarray(8, 14), address: body.subarray(14, 18) };
    this.neighbours.set(sender.address.join('.'), sender.mac.toString('hex').replaceAll(/..(?=.)/g, '$&:'));
    if (body[7] !== 1 || body.subarray(24, 28).join('.') !== this.#options.address) return;
    const own = { mac: macBytes(this.#options.macAddress), address: addressBytes(this.#options.address) };
    this.#sendFrame(sender.mac.toString('hex'), ETHERTYPE_ARP, arp(2, own, sender));
  }

  #handleDatagram(via: string, body: Buffer): void {
    if (body.subarray(16, 20).join('.') !== this.#options.address) return;
    const udp = body.subarray(20);
    const payload = udp.subarray(8, udp.readUInt16BE(4));
    this.received.push(payload.toString());
    const from = { address: this.#options.address, port: udp.readUInt16BE(2) };
    const to = { address: body.subarray(12, 16).join('.'), port: udp.readUInt16BE(0) };
    this.#sendFrame(via, ETHERTYPE_IP, datagram(from, to, payload));
  }
}

/** QEMU's connection; the server takes no other. */
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
