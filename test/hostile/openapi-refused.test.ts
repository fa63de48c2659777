/**
 * Generated requests to every operation of the HTTP API, as callers without any right. Those of an administrator are in a file of their own,
 * because both take minutes of a processor.
 */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { FuzzedServer, SET_UP_MILLISECONDS, TEST_MILLISECONDS } from './support/fuzzedserver.ts';
import { snapshotOf } from './support/snapshot.ts';

/** A token in the form of an OpenID provider, which no provider has issued. */
const UNKNOWN = ['{"alg":"RS256"}', '{"sub":"somebody"}', 'signature']
  .map((part) => Buffer.from(part).toString('base64url'))
  .join('.');

/** Few, because the server refuses such a caller before it reads the body. */
const EXAMPLES = 50;

let fuzzed: FuzzedServer;

beforeAll(async () => {
  fuzzed = await FuzzedServer.start('openapi-refused');
}, SET_UP_MILLISECONDS);

afterAll(async () => await fuzzed?.[Symbol.asyncDispose]());

it('callers without any right get no error of the server, and change nothing', {
  timeout: TEST_MILLISECONDS,
}, async (context) => {
  const stranger = await fuzzed.tokenOf('stranger');
  const before = await snapshotOf(fuzzed.cluster);
  const codes = await fuzzed.send(context, 'no right or unknown token', [
    { token: stranger, examples: EXAMPLES, onlyValid: true },
    { token: UNKNOWN, examples: EXAMPLES, onlyValid: true },
  ]);
  expect(await snapshotOf(fuzzed.cluster)).toEqual(before);
  expect(codes.get('401')).toBeGreaterThan(100);
  expect(codes.get('403')).toBeGreaterThan(100);
});
