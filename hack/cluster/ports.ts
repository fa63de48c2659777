import { randomInt } from 'node:crypto';
import { createServer } from 'node:net';
import { codeOf } from '../../base/errors.ts';

/** Below the range from which systems take ports for outgoing connections, so that none grabs one in between. */
const FIRST = 20_000;
const LAST = 29_999;
/** More failures than this mean that something else is wrong. */
const ATTEMPTS = 200;
/** Files of tests that run beside one another take from ranges of their own: a port is free until somebody listens on it. */
const RANGES = 4;
const SIZE = Math.floor((LAST + 1 - FIRST) / RANGES);
/** vitest numbers its workers from 1; outside of them there is none. */
const RANGE_FIRST = FIRST + SIZE * (Number(process.env['VITEST_POOL_ID'] ?? 0) % RANGES);
/** What this process has given away before, and may not be listened on yet. */
const given = new Set<number>();

/** Loopback TCP ports that nothing listens on, never the same twice, chosen at random so that two processes don't meet. */
export async function freePorts(count: number): Promise<number[]> {
  const ports: number[] = [];
  for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
    if (ports.length === count) {
      return ports;
    }
    const port = randomInt(RANGE_FIRST, RANGE_FIRST + SIZE);
    if (!given.has(port)) {
      given.add(port);
      if (await isFree(port)) {
        ports.push(port);
      }
    }
  }
  throw new Error(`no ${count} free ports between ${RANGE_FIRST} and ${RANGE_FIRST + SIZE - 1}`);
}

/** One of them. */
export async function freePort(): Promise<number> {
  const [port = 0] = await freePorts(1);
  return port;
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer();
  return await new Promise((resolve, reject) => {
    server.once('error', (error) => {
      if (codeOf(error) === 'EADDRINUSE' || codeOf(error) === 'EACCES') {
        resolve(false);
      } else {
        reject(error);
      }
    });
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}
