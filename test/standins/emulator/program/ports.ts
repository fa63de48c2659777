/** Stand-in for the Android emulator: its ports, which are on loopback only. */
import { once } from 'node:events';
import { createServer, type Socket } from 'node:net';
import { Fatal, type Options } from './arguments.ts';

const FIRST_PORT = 5554;
const LAST_PORT = 5584;
const TOO_MANY = 'It seems too many emulator instances are running on this machine. Aborting.';

export interface Ports {
  console: number;
  adb: number;
}

/** Servers of the two ports. `adb` is undefined if a guest's QEMU takes the port itself. */
export interface Served {
  console: (socket: Socket) => void;
  adb: ((socket: Socket) => void) | undefined;
}

/**
 * Listens on the ports of the options, or on the first free pair.
 * @throws Fatal if a named port is taken, or all of them.
 */
export async function listen({ values }: Options, served: Served): Promise<Ports> {
  for (const ports of wantedPorts(values.port, values.ports)) {
    // The guest's port is tried too, because QEMU would only say later that it is taken.
    const adb = await open(ports.adb, served.adb);
    const console = adb === undefined ? undefined : await open(ports.console, served.console);
    if (served.adb === undefined || console === undefined) {
      await adb?.();
    }
    if (console !== undefined) {
      return ports;
    }
  }
  throw new Fatal(TOO_MANY);
}

/** @throws Fatal if the option is not of its form. */
function wantedPorts(port: string | undefined, ports: string | undefined): Ports[] {
  const pair = (console: number): Ports => ({ console, adb: console + 1 });
  if (ports !== undefined) {
    const [, console, adb] = /^(\d+),(\d+)$/.exec(ports) ?? [];
    if (console === adb) {
      throw new Fatal('option -ports must be followed by two different port numbers separated by a comma');
    }
    return [{ console: Number(console), adb: Number(adb) }];
  }
  if (port !== undefined) {
    const number = Number(port);
    if (!(number >= FIRST_PORT && number <= LAST_PORT) || number % 2 !== 0) {
      throw new Fatal(
        `option -port must be followed by an even integer number between ${FIRST_PORT} and ${LAST_PORT}`,
      );
    }
    return [pair(number)];
  }
  return Array.from({ length: (LAST_PORT - FIRST_PORT) / 2 + 1 }, (_, index) => pair(FIRST_PORT + 2 * index));
}

/** Listens on both loopback addresses, if the machine has IPv6. Returns a function that ends it; undefined if the port is taken. */
async function open(
  port: number,
  serve: ((socket: Socket) => void) | undefined,
): Promise<(() => Promise<void>) | undefined> {
  const servers = [createServer(serve), createServer(serve)];
  const close = async () => {
    await Promise.all(
      servers
        .filter((server) => server.listening)
        .map(async (server) => await new Promise((resolve) => server.close(resolve))),
    );
  };
  for (const [index, host] of ['127.0.0.1', '::1'].entries()) {
    try {
      await once(servers[index]?.listen({ port, host, ipv6Only: true }) ?? process, 'listening');
    } catch (error) {
      if (index === 0 || (error as NodeJS.ErrnoException).code === 'EADDRINUSE') {
        await close();
        return undefined;
      }
    }
  }
  return close;
}
