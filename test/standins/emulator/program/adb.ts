/**
 * Stand-in for the Android emulator: the device's side of ADB, without a guest. It answers `getprop` and nothing else, or asks for a key.
 * With a guest, Debian's adbd answers in its place.
 */
import type { Socket } from 'node:net';

const HEADER_BYTES = 24;
/** The protocol's version in which the receiver checks sums, which every client understands. */
const VERSION = 0x01000000;
const LARGEST_PAYLOAD = 4096;
const AUTH_TOKEN = 1;

export interface Device {
  asksForKey: () => boolean;
  property: (name: string) => string;
}

interface Message {
  command: string;
  first: number;
  second: number;
  payload: Buffer;
}

/** Serves one connection. */
export function serveAdb(socket: Socket, device: Device): void {
  let received = Buffer.alloc(0);
  const streams = { next: 1 };
  socket.on('error', () => undefined);
  socket.on('data', (bytes: Buffer) => {
    received = Buffer.concat([received, bytes]);
    while (received.length >= HEADER_BYTES) {
      const length = received.readUInt32LE(12);
      if (length > LARGEST_PAYLOAD) {
        socket.destroy();
        return;
      }
      if (received.length < HEADER_BYTES + length) {
        return;
      }
      const message = {
        command: received.toString('latin1', 0, 4),
        first: received.readUInt32LE(4),
        second: received.readUInt32LE(8),
        payload: received.subarray(HEADER_BYTES, HEADER_BYTES + length),
      };
      received = received.subarray(HEADER_BYTES + length);
      answer(socket, device, message, streams);
    }
  });
}

function answer(socket: Socket, device: Device, message: Message, streams: { next: number }): void {
  const say = (command: string, first: number, second: number, payload = Buffer.alloc(0)) =>
    socket.write(packet(command, first, second, payload));
  if (message.command === 'CNXN' && device.asksForKey()) {
    say('AUTH', AUTH_TOKEN, 0, Buffer.alloc(20, 'k'));
  } else if (message.command === 'CNXN') {
    const banner = 'device::ro.product.name=standin;ro.product.model=stand-in;ro.product.device=standin;';
    say('CNXN', VERSION, LARGEST_PAYLOAD, Buffer.from(banner));
  } else if (message.command === 'OPEN' && !device.asksForKey()) {
    const own = streams.next++;
    say('OKAY', own, message.first);
    say('WRTE', own, message.first, Buffer.from(execute(message.payload.toString('latin1'), device)));
  } else if (message.command === 'OKAY') {
    // The client has the output, and there is no more.
    say('CLSE', message.second, message.first);
  }
}

/** Returns the output of the service `shell:getprop NAME` or `exec:getprop NAME`. */
function execute(service: string, device: Device): string {
  const [, name] = /^(?:shell|exec)[^:]*:getprop ([\w.]+)\s*\0?$/.exec(service) ?? [];
  return name === undefined
    ? 'the stand-in without a guest knows only getprop NAME\n'
    : `${device.property(name)}\n`;
}

function packet(command: string, first: number, second: number, payload: Buffer): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header.write(command, 'latin1');
  const code = header.readUInt32LE(0);
  const sum = payload.reduce((total, byte) => total + byte, 0);
  for (const [index, field] of [first, second, payload.length, sum, ~code >>> 0].entries()) {
    header.writeUInt32LE(field, 4 + 4 * index);
  }
  return Buffer.concat([header, payload]);
}
