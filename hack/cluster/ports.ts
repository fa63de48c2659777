import { randomInt } from 'node:crypto';
import { createServer } from 'node:net';
import { codeOf } from '../../base/errors.ts';
import { LANES } from '../vitest/stages.ts';

/**
 * Range of ports. It is below the range for outgoing connections, so that no connection uses a port before its program listens. It is above
 * the ports that agents choose for VMs.
 */
const FIRST = 22_000;
const LAST = 29_999;
/** Largest number of attempts to find a free port. If so many attempts fail, the cause is not that the ports are in use. */
const ATTEMPTS = 200;
/**
 * Number of parts of a lane's range, one for each worker. Files of tests that run at the same time choose from different parts, because a port
 * stays free until a program listens on it. Each lane of a whole test run has parts of its own.
 */
const WORKERS = 4;
const SIZE = Math.floor((LAST + 1 - FIRST) / (LANES * WORKERS));
/** First port of this process's part. vitest numbers its workers from 1 in each lane; other processes have no number. */
const RANGE_FIRST =
  FIRST + SIZE * (WORKERS * partOf('BERTH_TEST_LANE', LANES) + partOf('VITEST_POOL_ID', WORKERS));
/** Ports that this process has returned before. Perhaps no program listens on them yet. */
const given = new Set<number>();

/**
 * Finds loopback TCP ports on which no program listens. It returns no port twice, and chooses at random so that two processes rarely
 * collide.
 */
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

function partOf(variable: string, count: number): number {
  return Number(process.env[variable] ?? 0) % count;
}

/** Returns one free port. */
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
