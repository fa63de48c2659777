import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { rest } from '../../base/time.ts';
import type { PortForward } from '../drivers/driver.ts';
import { newRecord, newRuntime, type Runtime } from './machine.ts';
import { GuestLoops } from './guestloop.ts';
import { type OpenForward, PortCheck, questionFor, type ReadinessTarget } from './readiness.ts';

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
async function ask(
  port: number,
  { until, ...target }: Pick<ReadinessTarget, 'forwarded'> & Partial<ReadinessTarget> & { until?: 'ready' },
  open: OpenForward = async () => undefined,
): Promise<Runtime['readiness']> {
  const runtime = newRuntime(RECORD, '/none');
  await new Promise<void>((resolve) => {
    const changed = (): void => {
      if (until === undefined || runtime.readiness?.ready === true) {
        resolve();
      }
    };
    const loops = new GuestLoops<PortCheck>({ changed, onError: () => undefined, wait: rest });
    started.push(loops);
    const checked = { at: { host: '127.0.0.1', port }, guestPort: 22, ssh: false, ...target };
    loops.start('uid', new PortCheck(runtime, checked, open));
  });
  return runtime.readiness;
}

describe('a guest behind the hypervisor’s forwarding', () => {
  test('is not ready while its connections are taken and nobody is behind', async () => {
    const port = await listen((socket) => socket.resume());
    expect(await ask(port, { forwarded: true })).toMatchObject({ ready: false });
  });

  test('is not ready while its connections are dropped', async () => {
    const port = await listen((socket) => socket.destroy());
    expect(await ask(port, { forwarded: true })).toMatchObject({ ready: false });
  });

  test('is ready when it speaks first', async () => {
    const port = await listen((socket) => socket.write('SSH-2.0\r\n'));
    expect(await ask(port, { forwarded: true, until: 'ready' })).toEqual({
      ready: true,
      message: 'Port 22 of the guest answers',
    });
  });

  test('is ready when it closes after its client', async () => {
    const port = await listen((socket) => {
      socket.on('end', () => socket.end());
      socket.resume();
    });
    expect(await ask(port, { forwarded: true, until: 'ready' })).toEqual({
      ready: true,
      message: 'Port 22 of the guest answers',
    });
  });
});

test('a guest with an address of its own is ready as soon as it takes a connection', async () => {
  const port = await listen((socket) => socket.resume());
  expect(await ask(port, { forwarded: false, until: 'ready' })).toEqual({
    ready: true,
    message: 'Port 22 of the guest answers',
  });
});

test('a port that nobody listens on says so', async () => {
  const port = await listen(() => undefined);
  servers.splice(0).forEach((server) => server.close());
  expect(await ask(port, { forwarded: false })).toEqual({
    ready: false,
    message: `The guest does not answer on 127.0.0.1:${port}`,
  });
});

describe('a guest with SSH keys', () => {
  const SSH = { ssh: true, forwarded: false } as const;

  test.each([
    ['at once', 'SSH-2.0-dropbear\r\n'],
    ['after other lines', 'Welcome\r\nSSH-2.0-x\r\n'],
  ])('is ready when an SSH server begins %s', async (_, text) => {
    const port = await listen((socket) => socket.write(text));
    expect(await ask(port, { ...SSH, until: 'ready' })).toEqual({
      ready: true,
      message: 'The SSH server of the guest answers',
    });
  });

  test.each([
    ['says nothing', (socket: Socket) => socket.end()],
    ['speaks another protocol', (socket: Socket) => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n')],
    ['says far too much', (socket: Socket) => socket.write('x'.repeat(5_000))],
  ])('is not ready while its port %s', async (_, serve) => {
    const port = await listen(serve);
    expect(await ask(port, SSH)).toEqual({
      ready: false,
      message: 'No SSH server of the guest answers on port 22',
    });
  });
});

describe('a guest that is reached by a port that the driver opens', () => {
  const TARGET = { at: undefined, forwarded: true, ssh: true } as const;

  test('is asked through it, and the port is closed again', async () => {
    const port = await listen((socket) => socket.write('SSH-2.0-x\r\n'));
    let open = 0;
    const forward = { port, close: async () => void (open -= 1) };
    const opened = async (): Promise<PortForward> => {
      open += 1;
      return forward;
    };
    expect(await ask(0, { ...TARGET, until: 'ready' }, opened)).toMatchObject({ ready: true });
    expect(open).toBe(0);
  });

  test('is asked through one port while it is silent, and through another one after a restart of the hypervisor', async () => {
    const ports = [await listen((socket) => socket.end()), await listen((socket) => socket.end())];
    const [restarted] = servers;
    const log: string[] = [];
    const ended = Promise.withResolvers<void>();
    const open = async (): Promise<PortForward> => {
      log.push('open');
      const port = ports.shift() ?? 0;
      return {
        port,
        close: async () => {
          log.push('close');
          if (ports.length === 0) {
            ended.resolve();
          }
        },
      };
    };
    const steps = [() => undefined, () => restarted?.close(), () => undefined, () => undefined];
    const wait = async (): Promise<void> => {
      log.push('asked');
      (steps.shift() ?? (() => loops.close()))();
    };
    const loops = new GuestLoops<PortCheck>({ changed: () => undefined, onError: () => undefined, wait });
    loops.start('uid', new PortCheck(newRuntime(RECORD, '/none'), { ...TARGET, guestPort: 22 }, open));
    await ended.promise;
    const once = ['open', 'asked', 'asked', 'close'];
    expect(log).toEqual([...once, 'asked', ...once]);
  });

  test('is not ready while the driver opens none', async () => {
    expect(await ask(0, TARGET)).toMatchObject({ ready: false });
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
      const at = { host: '127.0.0.1', port: guest.port };
      const target = { at, guestPort: 22, forwarded: false, ssh: false };
      loops.start('uid', new PortCheck(runtime, target, async () => undefined));
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
      target: { at: { host: '10.0.0.2', port: 22 }, forwarded: false, ssh: false },
    });
  });

  test('else a reserved port of the host that leads there', () => {
    expect(questionFor(machine({ type: 'Port', port: 80 }), UNKNOWN, '127.0.0.1')).toMatchObject({
      target: { at: { host: '127.0.0.1', port: 8080 }, forwarded: true, ssh: false },
    });
  });

  test('else a port that the driver opens', () => {
    expect(questionFor(machine({ type: 'Port', port: 22 }), UNKNOWN, '127.0.0.1')).toMatchObject({
      target: { at: undefined, guestPort: 22, forwarded: true },
    });
  });

  test('for SSH: its usual port', () => {
    expect(questionFor(machine({ type: 'SSH' }), UNKNOWN, '127.0.0.1')).toMatchObject({
      target: { at: undefined, guestPort: 22, forwarded: true, ssh: true },
    });
  });
});
