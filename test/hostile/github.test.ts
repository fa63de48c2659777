/** A server of GitHub that sends back the credentials of its requests wherever it can. They must not reach a status, an Event or a log. */
import { inspect } from 'node:util';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import type { GitHub } from '../../runners/github/client.ts';
import { appValues, connectTo } from '../support/github/client.ts';
import { GitHubStub } from '../support/github/stub.ts';
import { tried } from './support/attempts.ts';

/** Tokens of the forms that GitHub has. */
const PERSONAL = 'ghp_16C7e42F292c6912E7710c838347Ae178B4a';
const QUEUE = `eyJhbGciOiJSUzI1NiJ9.${'c2Vzc2lvbg'.repeat(4)}.c2ln`;
/** Parts of a token that are not longer than this number of characters say nothing. */
const SHORT = 10;
const never = new AbortController().signal;

let stub: GitHubStub;

beforeEach(async () => {
  stub = await GitHubStub.start();
});

afterEach(async () => {
  await stub[Symbol.asyncDispose]();
});

/** Every request of a client whose answer can be an error. */
const CALLS: Readonly<Record<string, (github: GitHub) => Promise<unknown>>> = {
  findGroup: async (github) => await github.findGroup('default', never),
  findScaleSet: async (github) => await github.findScaleSet(1, 'mac', never),
  createScaleSet: async (github) =>
    await github.createScaleSet({ groupID: 1, name: 'mac', labels: ['mac'] }, never),
  openSession: async (github) => await github.openSession(1, 'berth', never),
  nextMessage: async (github) =>
    await github.nextMessage(
      {
        sessionId: crypto.randomUUID(),
        messageQueueUrl: new URL(`${stub.url('acme')}/queue`),
        messageQueueAccessToken: QUEUE,
      },
      { lastID: undefined, capacity: 1 },
      never,
    ),
  registerRunner: async (github) => await github.registerRunner(1, 'mac-1', never),
  removeRunner: async (github) => await github.removeRunner('mac-1', never),
  listRunners: async (github) => await github.listRunners('mac-', never),
};

/** Returns the error as people can see it: its message, its line in a log, and all that a debugger shows. */
function showError(error: unknown): string {
  return [
    String(error),
    JSON.stringify(pino.stdSerializers.err(error as Error)),
    inspect(error, { depth: 9 }),
  ].join('\n');
}

it.for([
  ['a token', () => ({ token: PERSONAL, host: stub.host })],
  ['an App', () => appValues(stub.host)],
] as const)('no error has a credential of %s', async ([, values], context) => {
  const own = values();
  for (const [name, call] of Object.entries(CALLS)) {
    for (const knowsTenant of [true, false]) {
      for (const status of [302, 401, 409, 500]) {
        const { github, close } = connectTo(stub, 'acme', { values: own });
        stub.fault = undefined;
        if (knowsTenant) {
          await github.findGroup('default', never);
        }
        stub.requests.length = 0;
        stub.fault = { status, reflects: true };
        const error: unknown = await call(github).catch((thrown: unknown) => thrown);
        await close();
        expect(error).toBeInstanceOf(Error);
        const sent = stub.requests.flatMap(
          ({ headers }) =>
            headers['authorization']?.split(/[ .]/).filter((part) => part.length > SHORT) ?? [],
        );
        const shown = showError(error);
        expect(stub.requests.length).toBeGreaterThan(0);
        expect(sent.filter((secret) => shown.includes(secret))).toEqual([]);
        tried(context, `${name} against a server that shows credentials`, 'no credential in the error');
      }
    }
  }
});
