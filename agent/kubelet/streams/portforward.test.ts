import { once } from 'node:events';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { StreamRefused } from '../../drivers/driver.ts';
import { SharedForwards } from './portforward.ts';

let guest: Server;
let forwards: SharedForwards;
/** Record of the forwards that were opened and closed, in order. */
let log: string[];

beforeEach(async () => {
  guest = createServer();
  guest.listen(0, '127.0.0.1');
  await once(guest, 'listening');
  forwards = new SharedForwards();
  log = [];
});

afterEach(() => guest.close());

async function open() {
  log.push('open');
  return {
    port: (guest.address() as AddressInfo).port,
    close: async () => {
      log.push('close');
    },
  };
}

describe('forwards to a guest', () => {
  it('are shared by the connections to one port, and closed after the last one', async () => {
    const sockets = await Promise.all([1, 2, 3].map(() => forwards.connect('vm:22', 22, open)));
    for (const socket of sockets) {
      expect(log).toEqual(['open']);
      socket.destroy();
      await once(socket, 'close');
    }
    expect(log).toEqual(['open', 'close']);
    const next = await forwards.connect('vm:22', 22, open);
    expect(log).toEqual(['open', 'close', 'open']);
    next.destroy();
    await once(next, 'close');
  });

  it('are opened again after a failure', async () => {
    const refuse = () => Promise.reject(new StreamRefused('The machine is not running'));
    await expect(forwards.connect('vm:22', 22, refuse)).rejects.toThrow('The machine is not running');
    const socket = await forwards.connect('vm:22', 22, open);
    expect(log).toEqual(['open']);
    socket.destroy();
    await once(socket, 'close');
  });

  it('are closed when the guest accepts no connection', async () => {
    const close = async () => void log.push('close');
    const dead = async () => ({ port: 1, close });
    await expect(forwards.connect('vm:22', 22, dead)).rejects.toThrow(
      'Port 22 of the guest cannot be reached: no program listens on it',
    );
    expect(log).toEqual(['close']);
  });
});
