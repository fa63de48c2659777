import { setImmediate } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import { MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import type { BootAnswer } from '../drivers/emulator/adb.ts';
import { GuestChecks } from './guestchecks.ts';
import type { PodHost } from './host.ts';
import { type MachineRecord, newRecord, newRuntime, type Runtime } from './machine.ts';

const POD: Pod = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'phone.emulator', namespace: 'ns', uid: 'u' },
  spec: { containers: [{ name: MACHINE_CONTAINER, image: 'x' }] },
};
const SILENT: BootAnswer = { kind: 'silent', message: 'refused' };
const BOOTING: BootAnswer = { kind: 'booting' };
const BOOTED: BootAnswer = { kind: 'booted' };

function runtimeOf(booted: boolean): Runtime {
  const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const emulator = { exposure: 'PairedVM' } as EmulatorMachine;
  const record = newRecord({
    uid: 'u',
    driver: 'emulator',
    key: 'ns/x',
    machine: undefined,
    emulator,
    claim,
  });
  record.booted = booted;
  const runtime = newRuntime(record, '/none');
  runtime.state = { kind: 'running', pid: 1, guestStarted: true, paused: false };
  runtime.address = '192.0.2.16';
  return runtime;
}

/** Returns a host that saves records in memory only. `onError` is called when an answer could not be processed. */
function hostOf(onError: (error: unknown) => void): PodHost {
  const update = (record: MachineRecord, change: Partial<MachineRecord>) => Object.assign(record, change);
  const logger = { error: ({ err }: { err: unknown }) => onError(err) };
  return { records: { update }, logger } as unknown as PodHost;
}

interface OperatorEvent {
  runtime: Runtime;
  /** Each wait between two questions, with the readiness at that time. */
  waits: { milliseconds: number; ready: boolean | undefined; message: string | undefined }[];
  /** Number of reported changes. */
  changes: number;
}

/** Gives the checks the answers one after another, and ends after the last answer. */
async function play(
  answers: readonly BootAnswer[],
  o: { booted?: boolean; pod?: Pod; before?: (asked: number, runtime: Runtime) => void } = {},
): Promise<OperatorEvent> {
  const runtime = runtimeOf(o.booted ?? false);
  const story: OperatorEvent = { runtime, waits: [], changes: 0 };
  const end = Promise.withResolvers<void>();
  const left = [...answers];
  const changed = (): void => {
    story.changes += 1;
  };
  const checks = new GuestChecks(hostOf(end.reject), changed, {
    askBooted: async ({ host, port }) => {
      expect({ host, port }).toEqual({ host: '192.0.2.16', port: 5555 });
      return left.shift() ?? SILENT;
    },
    wait: async (milliseconds) => {
      const { ready, message } = runtime.readiness ?? {};
      story.waits.push({ milliseconds, ready, message });
      o.before?.(story.waits.length, runtime);
      if (left.length === 0) {
        checks.close();
        end.resolve();
      }
    },
  });
  checks.follow(o.pod ?? POD, runtime);
  await end.promise;
  return story;
}

describe('Android that boots', () => {
  it('is asked every 2 s with a message about what is awaited, and every 10 s once it has booted', async () => {
    const { waits, runtime, changes } = await play([SILENT, SILENT, BOOTING, BOOTED, BOOTED]);
    expect(waits).toEqual([
      { milliseconds: 2_000, ready: false, message: 'Android is booting; ADB does not answer yet' },
      { milliseconds: 2_000, ready: false, message: 'Android is booting; ADB does not answer yet' },
      {
        milliseconds: 2_000,
        ready: false,
        message: 'Android is booting; ADB answers, and the boot is not complete yet',
      },
      { milliseconds: 10_000, ready: true, message: 'Android has booted, and ADB answers' },
      { milliseconds: 10_000, ready: true, message: 'Android has booted, and ADB answers' },
    ]);
    expect(runtime.record.booted).toBe(true);
    expect(changes, 'only changes are told').toBe(2);
  });

  it.each<[kind: 'wantsKey' | 'wrong', message: RegExp]>([
    ['wantsKey', /^ADB requires a key/],
    ['wrong', /answers, but not as ADB$/],
  ])('says %s without words of the guest', async (kind, message) => {
    const { waits } = await play([{ kind, message: 'HOSTILE' }]);
    expect(waits).toEqual([{ milliseconds: 2_000, ready: false, message: expect.stringMatching(message) }]);
    expect(waits[0]?.message).not.toContain('HOSTILE');
  });
});

describe('Android that has booted', () => {
  it('is not ready after three failures in a row, which come every 2 s, and ready again at once', async () => {
    const answers = [BOOTED, SILENT, SILENT, BOOTED, SILENT, BOOTING, SILENT, BOOTED];
    const { waits, runtime } = await play(answers);
    expect(waits.map(({ ready }) => ready)).toEqual([true, true, true, true, true, true, false, true]);
    expect(waits.map(({ milliseconds }) => milliseconds / 1000)).toEqual([10, 2, 2, 10, 2, 2, 2, 10]);
    expect(waits[6]?.message).toBe('Android has booted, but ADB no longer answers');
    expect(runtime.record.booted).toBe(true);
  });

  it('has the readiness of its Pod when another agent comes, and needs no change', async () => {
    const message = 'Android has booted, and ADB answers';
    const conditions = [{ type: 'Ready', status: 'True' as const, message }];
    const { waits, changes } = await play([SILENT, BOOTED], {
      booted: true,
      pod: { ...POD, status: { conditions } },
    });
    expect(waits.map(({ ready }) => ready)).toEqual([true, true]);
    expect(changes).toBe(0);
  });

  it('is not asked while it is paused', async () => {
    const { waits } = await play([BOOTED, BOOTED], {
      before: (asked, runtime) => {
        const paused = asked < 6;
        runtime.state = { kind: 'running', pid: 1, guestStarted: !paused, paused };
      },
    });
    expect(waits).toHaveLength(7);
    expect(waits.every(({ ready }) => ready)).toBe(true);
  });
});

describe('answers that alternate without end', () => {
  const repeated = (...answers: BootAnswer[]) => Array.from({ length: 100 }, () => answers).flat();

  it('change the message of an Android that boots a few times, and then no more', async () => {
    const { changes } = await play(repeated(BOOTING, { kind: 'wrong', message: 'x' }));
    expect(changes).toBeLessThanOrEqual(2);
    const { changes: slower } = await play(repeated(BOOTING, BOOTING, SILENT, SILENT));
    expect(slower).toBeLessThanOrEqual(3);
  });

  it('take the readiness of an Android that has booted seldom, and less and less', async () => {
    const { waits } = await play(repeated(BOOTED, ...Array.from({ length: 20 }, () => SILENT)));
    const losses = waits.filter(({ ready }, at) => ready === false && waits[at - 1]?.ready === true);
    expect(losses).toHaveLength(3);
    const { waits: gone } = await play([BOOTED, ...repeated(SILENT)]);
    expect(gone.at(-1)?.ready).toBe(false);
  });
});

it('the end of the process ends the questions, and the next run begins as not ready', async () => {
  const runtime = runtimeOf(true);
  const { promise: firstWait, resolve: endFirstWait } = Promise.withResolvers<void>();
  const waits = [firstWait];
  let asked = 0;
  const checks = new GuestChecks(
    hostOf(() => undefined),
    () => undefined,
    {
      askBooted: async () => {
        asked += 1;
        return BOOTED;
      },
      // Only the first wait ends.
      wait: async () => await (waits.shift() ?? new Promise<void>(() => undefined)),
    },
  );
  checks.follow(POD, runtime);
  await setImmediate();
  expect([asked, runtime.readiness?.ready]).toEqual([1, true]);
  runtime.state = { kind: 'stopped' };
  checks.follow(POD, runtime);
  endFirstWait();
  await setImmediate();
  expect([asked, runtime.readiness]).toEqual([1, undefined]);
  runtime.state = { kind: 'running', pid: 2, guestStarted: true, paused: false };
  checks.follow(POD, runtime);
  expect(runtime.readiness?.ready).toBe(false);
  await setImmediate();
  expect([asked, runtime.readiness?.ready]).toEqual([2, true]);
});

it('an emulator that is forgotten while ADB answers is not written down as booted', async () => {
  const runtime = runtimeOf(false);
  const answer = Promise.withResolvers<BootAnswer>();
  const changed: string[] = [];
  const waited = Promise.withResolvers<void>();
  const host = hostOf(() => changed.push('error'));
  const checks = new GuestChecks(host, (uid) => changed.push(uid), {
    askBooted: async () => await answer.promise,
    wait: async () => waited.resolve(),
  });
  checks.follow(POD, runtime);
  checks.forget('u');
  answer.resolve(BOOTED);
  await waited.promise;
  expect([changed, runtime.record.booted]).toEqual([[], false]);
});
