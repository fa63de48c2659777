import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { rest } from '../../base/time.ts';
import { newRecord, newRuntime, type Runtime } from './machine.ts';
import { GuestLoops } from './guestloop.ts';
import { PortCheck, questionFor } from './readiness.ts';

const CLAIM = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
const RECORD = newRecord({ driver: 'qemu', uid: 'uid', key: 'ns/x', machine: undefined, claim: CLAIM });

const servers: Server[] = [];
const started: GuestLoops<PortCheck>[] = [];

afterEach(() => {
  for (const loops of started.splice(0)) {
    loops.close();
  }
  for (const server of servers.splice(0)) {
    server.close();
  }
});

async function listen(serve: (socket: Socket) => void): Promise<number> {
  const server = createServer({ allowHalfOpen: true }, serve);
  servers.push(server);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

/** Returns the first result for a port, or the first ready result if `until` is set. A busy test machine can lose the first connection. */
async function ask(port: number, forwarded: boolean, until?: 'ready'): Promise<Runtime['readiness']> {
  const runtime = newRuntime(RECORD, '/none');
  await new Promise<void>((resolve) => {
    const changed = (): void => {
      if (until === undefined || runtime.readiness?.ready === true) {
        resolve();
      }
    };
    const loops = new GuestLoops<PortCheck>({ changed, onError: () => undefined, wait: rest });
    started.push(loops);
    loops.start('uid', new PortCheck(runtime, { host: '127.0.0.1', port, guestPort: 22, forwarded }));
  });
  return runtime.readiness;
}

describe('a guest behind the hypervisor’s forwarding', () => {
  test('is not ready while its connections are taken and nobody is behind', async () => {
    const port = await listen((socket) => socket.resume());
    expect(await ask(port, true)).toMatchObject({ ready: false });
  });

  test('is not ready while its connections are dropped', async () => {
    const port = await listen((socket) => socket.destroy());
    expect(await ask(port, true)).toMatchObject({ ready: false });
  });

  test('is ready when it speaks first', async () => {
    const port = await listen((socket) => socket.write('SSH-2.0\r\n'));
    expect(await ask(port, true, 'ready')).toEqual({ ready: true, message: 'Port 22 of the guest answers' });
  });

  test('is ready when it closes after its client', async () => {
    const port = await listen((socket) => {
      socket.on('end', () => socket.end());
      socket.resume();
    });
    expect(await ask(port, true, 'ready')).toEqual({ ready: true, message: 'Port 22 of the guest answers' });
  });
});

test('a guest with an address of its own is ready as soon as it takes a connection', async () => {
  const port = await listen((socket) => socket.resume());
  expect(await ask(port, false, 'ready')).toEqual({ ready: true, message: 'Port 22 of the guest answers' });
});

test('a port that nobody listens on says so', async () => {
  const port = await listen(() => undefined);
  servers.splice(0).forEach((server) => server.close());
  expect(await ask(port, false)).toEqual({
    ready: false,
    message: `The guest does not answer on 127.0.0.1:${port}`,
  });
});

/** Guest with one port on the loopback address. The test starts and stops the server on this port. */
class Guest {
  #server: Server | undefined;
  #port = 0;

  get port(): number {
    return this.#port;
  }

  async listens(listens: boolean): Promise<void> {
    if (listens === (this.#server !== undefined)) {
      return;
    }
    this.#server?.close();
    this.#server = listens
      ? createServer((socket) => socket.resume()).listen(this.#port, '127.0.0.1')
      : undefined;
    if (this.#server === undefined) {
      return;
    }
    servers.push(this.#server);
    await once(this.#server, 'listening');
    this.#port = (this.#server.address() as AddressInfo).port;
  }
}

describe('a guest that has answered', () => {
  /** Returns the readiness after each check, and the milliseconds until the next check. The waits are simulated. */
  async function known(listens: readonly boolean[]): Promise<[ready: boolean, milliseconds: number][]> {
    const guest = new Guest();
    await guest.listens(true);
    const seen: [boolean, number][] = [];
    const runtime = newRuntime(RECORD, '/none');
    await new Promise<void>((resolve) => {
      const wait = async (milliseconds: number): Promise<void> => {
        seen.push([runtime.readiness?.ready === true, milliseconds]);
        const next = listens[seen.length];
        if (next !== undefined) {
          return await guest.listens(next);
        }
        loops.close();
        resolve();
      };
      const loops = new GuestLoops<PortCheck>({ changed: () => undefined, onError: () => undefined, wait });
      const target = { host: '127.0.0.1', port: guest.port, guestPort: 22, forwarded: false };
      loops.start('uid', new PortCheck(runtime, target));
    });
    return seen;
  }

  test('stays ready for two lost connections in a row, and is asked sooner meanwhile', async () => {
    expect(await known([true, false, false, true, false, false])).toEqual([
      [true, 10_000],
      [true, 1_000],
      [true, 1_000],
      [true, 10_000],
      [true, 1_000],
      [true, 1_000],
    ]);
  });

  test('is not ready after the third, until it answers again', async () => {
    const seen = await known([true, false, false, false, true, false]);
    expect(seen.map(([ready]) => ready)).toEqual([true, true, true, false, true, true]);
  });
});

describe('where to ask', () => {
  const UNKNOWN = { address: undefined, guest: undefined };
  const ports = [{ protocol: 'TCP' as const, hostPort: 8080, guestPort: 80 }];
  const machine = (readiness: Machine['readiness']) => ({ readiness, ports }) as unknown as Machine;

  test('without a wish: nowhere, a running machine is ready', () => {
    expect(questionFor(machine({ type: 'None' }), UNKNOWN, '127.0.0.1')).toMatchObject({
      readiness: { ready: true },
    });
  });

  test('the guest’s own address, where it has one', () => {
    expect(
      questionFor(machine({ type: 'Port', port: 22 }), { ...UNKNOWN, address: '10.0.0.2' }, '127.0.0.1'),
    ).toMatchObject({
      target: { host: '10.0.0.2', port: 22, forwarded: false },
    });
  });

  test('else a reserved port of the host that leads there', () => {
    expect(questionFor(machine({ type: 'Port', port: 80 }), UNKNOWN, '127.0.0.1')).toMatchObject({
      target: { host: '127.0.0.1', port: 8080, forwarded: true },
    });
  });

  test('else nowhere, and the machine says why it is not ready', () => {
    expect(questionFor(machine({ type: 'Port', port: 22 }), UNKNOWN, '127.0.0.1')).toMatchObject({
      readiness: { ready: false, message: expect.stringContaining('guest port 22') as string },
    });
  });
});
