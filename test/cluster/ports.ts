import { randomInt } from 'node:crypto';
import { createServer } from 'node:net';
import { isErrorCode } from '../support/errors.ts';

/** Below the range from which systems take ports for outgoing connections, so that none grabs one in between. */
const FIRST = 20_000;
const LAST = 29_999;
/** More failures than this mean that something else is wrong. */
const ATTEMPTS = 200;

/** Distinct loopback TCP ports that nothing listens on, chosen at random so that two clusters don't meet. */
export async function freePorts(count: number): Promise<number[]> {
  const ports = new Set<number>();
  for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
    if (ports.size === count) return [...ports];
    const port = randomInt(FIRST, LAST + 1);
    if (await isFree(port)) ports.add(port);
  }
  throw new Error(`no ${count} free ports between ${FIRST} and ${LAST}`);
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer();
  return new Promise((resolve, reject) => {
    server.once('error', (error) => {
      if (isErrorCode(error, 'EADDRINUSE') || isErrorCode(error, 'EACCES')) resolve(false);
      else reject(error);
    });
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}
