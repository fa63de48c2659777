/**
 * Thread that compares passwords with hashes of bcrypt. One comparison takes a processor for 50 ms and more. In a thread of its own, it does
 * not delay the answers to other requests.
 */
import { parentPort } from 'node:worker_threads';
import { compareSync } from 'bcryptjs';

export interface Comparison {
  readonly password: string;
  readonly hash: string;
}

parentPort?.on('message', ({ password, hash }: Comparison) => {
  parentPort?.postMessage(compareSync(password, hash), []);
});
