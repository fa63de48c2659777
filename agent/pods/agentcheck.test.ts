import { setImmediate } from 'node:timers/promises';
import * as fc from 'fast-check';
import { afterEach, describe, expect, test, vi } from 'vitest';
import type { GuestFacts, Machine } from '../../api/v1alpha1/machine.ts';
import { MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import type { GuestAnswer, GuestQuestion } from '../drivers/driver.ts';
import { GuestChecks } from './guestchecks.ts';
import type { PodHost } from './host.ts';
import { newRecord, newRuntime, type Runtime } from './machine.ts';
import { questionFor } from './readiness.ts';

const POD: Pod = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'x', namespace: 'ns', uid: 'uid' },
  spec: { containers: [] },
};
const CLAIM = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
const FACTS: GuestFacts = { addresses: ['10.0.2.15'], os: 'Debian', hostName: 'guest' };
const ANSWERS: GuestAnswer = { kind: 'answers', facts: undefined };
const WITH_FACTS: GuestAnswer = { kind: 'answers', facts: FACTS };
const SILENT: GuestAnswer = { kind: 'silent' };
const BUSY: GuestAnswer = { kind: 'busy' };

const started: GuestChecks[] = [];

afterEach(() => {
  vi.restoreAllMocks();
  started.splice(0).forEach((checks) => checks.close());
});

function machineOf(type: Machine['readiness']['type']): Machine {
  return { readiness: { type }, ports: [] } as unknown as Machine;
}

function runtimeOf(type: Machine['readiness']['type']): Runtime {
  const record = newRecord({
    driver: 'qemu',
    uid: 'uid',
    key: 'ns/x',
    machine: machineOf(type),
    claim: CLAIM,
  });
  return {
    ...newRuntime(record, '/none'),
    state: { kind: 'running', pid: 1, guestStarted: true, paused: false },
  };
}

/** Returns a host whose guest agents answer as `ask` does. */
function hostOf(ask: (question: GuestQuestion) => Promise<GuestAnswer>): PodHost {
  const driver = { askGuest: async (_: unknown, question: GuestQuestion) => await ask(question) };
  const logger = { debug: () => undefined };
  return {
    drivers: new Map([['qemu', { driver }]]),
    logger,
    forwardAddress: '127.0.0.1',
  } as unknown as PodHost;
}

interface Round {
  connected: boolean | undefined;
  /** Milliseconds until the next question. */
  pause: number;
  /** Number of changes so far. */
  changes: number;
}

interface Polled {
  rounds: Round[];
  /** For each question, whether it also asked for facts. */
  askedFacts: boolean[];
  runtime: Runtime;
}

/** Returns what the agent knows after each answer. The waits are simulated. */
async function poll(
  answers: readonly (GuestAnswer | Error)[],
  { type = 'None', pod = POD }: { type?: Machine['readiness']['type']; pod?: Pod } = {},
): Promise<Polled> {
  const runtime = runtimeOf(type);
  const rounds: Round[] = [];
  const askedFacts: boolean[] = [];
  let changes = 0;
  let clock = 0;
  vi.spyOn(performance, 'now').mockImplementation(() => clock);
  await new Promise<void>((resolve) => {
    const host = hostOf(async ({ facts }) => {
      askedFacts.push(facts);
      const answer = answers[rounds.length] ?? SILENT;
      if (answer instanceof Error) {
        throw answer;
      }
      return answer;
    });
    const wait = async (pause: number): Promise<void> => {
      clock += pause;
      rounds.push({ connected: runtime.guest?.connected, pause, changes });
      if (rounds.length === answers.length) {
        checks.close();
        resolve();
      }
    };
    const checks = new GuestChecks(host, () => (changes += 1), { wait });
    started.push(checks);
    checks.follow(pod, runtime);
  });
  return { rounds, askedFacts, runtime };
}

/** Returns the largest number of changes within 10 minutes. */
function mostChanges(rounds: readonly Round[]): number {
  const times: number[] = [];
  let clock = 0;
  for (const { changes, pause } of rounds) {
    while (times.length < changes) {
      times.push(clock);
    }
    clock += pause;
  }
  return Math.max(0, ...times.map((from) => times.filter((at) => at >= from && at < from + 600_000).length));
}

describe('a guest agent that answers', () => {
  test('is connected, with the facts of its guest, and nothing changes while it answers the same', async () => {
    const { rounds, runtime } = await poll([WITH_FACTS, ANSWERS, ANSWERS, WITH_FACTS, ANSWERS]);
    expect(runtime.guest).toEqual({ connected: true, facts: FACTS });
    expect(rounds).toEqual(Array.from({ length: 5 }, () => ({ connected: true, pause: 10_000, changes: 1 })));
  });

  test('is asked for facts until the guest has an address, and then once a minute', async () => {
    const early: GuestAnswer = { kind: 'answers', facts: { addresses: [] } };
    const later = Array.from({ length: 5 }, () => ANSWERS);
    const { askedFacts } = await poll([early, early, WITH_FACTS, ...later, WITH_FACTS, ANSWERS]);
    expect(askedFacts).toEqual([true, true, true, ...later.map(() => false), true, false]);
  });

  test('stays connected for two silences in a row, and is asked sooner meanwhile', async () => {
    const { rounds } = await poll([WITH_FACTS, SILENT, SILENT, ANSWERS, SILENT, new Error('broken')]);
    expect(rounds.map(({ connected, pause }) => [connected, pause])).toEqual([
      [true, 10_000],
      [true, 1_000],
      [true, 1_000],
      [true, 10_000],
      [true, 1_000],
      [true, 1_000],
    ]);
  });

  test('is not connected after the third silence, and the last facts stay', async () => {
    const { runtime } = await poll([WITH_FACTS, SILENT, SILENT, SILENT]);
    expect(runtime.guest).toEqual({ connected: false, facts: FACTS });
  });

  test('that comes and goes changes its state less and less often, and more often after 10 quiet minutes', async () => {
    const flap = [ANSWERS, SILENT, SILENT, SILENT];
    const { rounds } = await poll([...flap, ...flap, SILENT, SILENT, SILENT, ANSWERS]);
    // For the second loss of the connection, six questions must have no answer instead of three.
    const states = rounds.map(({ connected }) => (connected === true ? '+' : '-')).join('');
    expect(states).toBe('+++-++++++-+');
    const quiet = Array.from({ length: 70 }, () => ANSWERS);
    const { rounds: later } = await poll([...flap, ...quiet, SILENT, SILENT, SILENT]);
    expect(later.at(-2)).toMatchObject({ connected: true });
    expect(later.at(-1)).toMatchObject({ connected: false });
  });

  test('changes its state at most 30 times in 10 minutes, and a silent one is not connected after a minute', async () => {
    const some = (answer: GuestAnswer, max: number) =>
      fc.integer({ min: 1, max }).map((count) => Array.from({ length: count }, () => answer));
    const flaps = fc
      .record({ up: some(ANSWERS, 3), down: some(SILENT, 80), times: fc.integer({ min: 1, max: 40 }) })
      .map(({ up, down, times }) => Array.from({ length: times }, () => [...up, ...down]).flat());
    const history = fc
      .array(fc.oneof(some(ANSWERS, 3), some(SILENT, 6), flaps, some(BUSY, 3)), {
        minLength: 1,
        maxLength: 20,
        size: 'max',
      })
      .map((parts) => parts.flat());
    await fc.assert(
      fc.asyncProperty(history, async (answers) => {
        const { rounds } = await poll(answers);
        expect(mostChanges(rounds)).toBeLessThanOrEqual(30);
        let silences = 0;
        for (const [index, { connected }] of rounds.entries()) {
          silences = answers[index] === SILENT ? silences + 1 : 0;
          expect(silences >= 60 && connected === true).toBe(false);
        }
      }),
      { numRuns: 60 },
    );
  });

  test('keeps its state while others use it or the guest is paused', async () => {
    const { rounds } = await poll([WITH_FACTS, ...Array.from({ length: 5 }, () => BUSY)]);
    expect(rounds.at(-1)).toMatchObject({ connected: true, changes: 1 });
  });

  test('is known from the report of an earlier agent, until it has been asked', async () => {
    const message = JSON.stringify({ guestAgentConnected: true, guest: FACTS });
    const reported = { type: MACHINE_CONDITION, status: 'True' as const, message };
    const { rounds } = await poll([SILENT, ANSWERS], { pod: { ...POD, status: { conditions: [reported] } } });
    expect(rounds.map(({ connected, changes }) => [connected, changes])).toEqual([
      [true, 0],
      [true, 0],
    ]);
  });
});

describe('a guest without a guest agent', () => {
  test('is asked more and more seldom, and its status says nothing of it', async () => {
    const { rounds } = await poll(Array.from({ length: 9 }, () => SILENT));
    const pauses = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000];
    expect(rounds).toEqual(pauses.map((pause) => ({ connected: undefined, pause, changes: 0 })));
  });

  test('is asked each second if its VM is Ready only with one, and is not ready', async () => {
    const { rounds, runtime } = await poll([SILENT, SILENT, SILENT], { type: 'GuestAgent' });
    expect(rounds).toEqual([1, 2, 3].map(() => ({ connected: false, pause: 1_000, changes: 1 })));
    expect(questionFor(machineOf('GuestAgent'), runtime, '127.0.0.1')).toEqual({
      kind: 'answer',
      readiness: { ready: false, message: 'The guest agent does not answer' },
    });
  });
});

test('a VM with readiness GuestAgent is ready when the guest agent answers', async () => {
  const { runtime } = await poll([SILENT, WITH_FACTS], { type: 'GuestAgent' });
  expect(questionFor(machineOf('GuestAgent'), runtime, '127.0.0.1')).toEqual({
    kind: 'answer',
    readiness: { ready: true, message: 'The guest agent answers' },
  });
});

test('a machine that does not run is not asked, and has no facts', async () => {
  const runtime = runtimeOf('None');
  const pauses: (() => void)[] = [];
  const asked: string[] = [];
  const host = hostOf(async () => {
    asked.push(runtime.state.kind);
    return WITH_FACTS;
  });
  const wait = async (): Promise<void> => await new Promise<void>((resolve) => pauses.push(resolve));
  const checks = new GuestChecks(host, () => undefined, { wait });
  started.push(checks);
  checks.follow(POD, runtime);
  await expect.poll(() => pauses).toHaveLength(1);
  expect(runtime.guest).toEqual({ connected: true, facts: FACTS });
  runtime.state = { kind: 'stopped' };
  checks.follow(POD, runtime);
  expect(runtime.guest).toBeUndefined();
  // Another loop would ask at once when its pause is over.
  pauses[0]?.();
  await setImmediate();
  checks.follow(POD, runtime);
  runtime.state = { kind: 'running', pid: 2, guestStarted: true, paused: false };
  checks.follow(POD, runtime);
  await expect.poll(() => pauses).toHaveLength(2);
  expect(asked).toEqual(['running', 'running']);
});
