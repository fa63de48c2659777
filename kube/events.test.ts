import { pino } from 'pino';
import { Registry } from 'prom-client';
import { expect, it } from 'vitest';
import type { KubeClient } from './client.ts';
import { EventRecorder } from './events.ts';
import { runtimeMetrics } from './metrics.ts';

const HOUR_MILLISECONDS = 3_600_000;

/** Returns a recorder with the Events that it created, and the patches that it sent. */
function recording(clock: () => number = Date.now) {
  const metrics = runtimeMetrics(new Registry());
  const [sent, patches, names]: [string[], object[], string[]] = [[], [], []];
  const client = {
    transport: { metrics },
    create: async (_: unknown, { note, metadata }: { note: string; metadata: { name: string } }) => {
      sent.push(note);
      names.push(metadata.name);
    },
    mergePatch: async (_type: unknown, _ref: unknown, patch: object) => void patches.push(patch),
  };
  const recorder = new EventRecorder<string>(client as unknown as KubeClient, {
    reportingController: 'berth.dev/test',
    reportingInstance: 'test',
    logger: pino({ level: 'silent' }),
    clock,
  });
  const object = { apiVersion: 'v1', kind: 'Pod', metadata: { name: 'a', namespace: 'n', uid: 'u' } };
  const tell = (message: string) =>
    recorder.event(object, { type: 'Normal', reason: 'Tried', action: 'Try', message });
  return { recorder, object, tell, sent, patches, names };
}

it('keeps the rate limit of an object when the clock is set back', async () => {
  let now = Date.now();
  const { recorder, tell, sent } = recording(() => now);
  tell('before');
  now -= 3 * HOUR_MILLISECONDS;
  for (let count = 0; count < 30; count += 1) {
    tell(`number ${count}`);
  }
  await recorder.flush(1_000);
  expect(sent, '25 without a pause').toHaveLength(25);
  now += 300_000;
  tell('after five minutes');
  await recorder.flush(1_000);
  expect(sent.slice(25)).toEqual(['after five minutes']);
});

it('remembers only the part of a message that people see, because a host can report megabytes', async () => {
  const { recorder, tell, sent, patches } = recording();
  const long = 'a'.repeat(1_000_000);
  tell(`${long} first`);
  tell(`${long} second`);
  await recorder.flush(1_000);
  expect(sent).toHaveLength(1);
  expect(patches).toMatchObject([{ series: { count: 2 } }]);
});

it('tells a state that comes and goes once in ten minutes, whatever its message is', async () => {
  let now = Date.now();
  const { recorder, object, sent, patches } = recording(() => now);
  const tell = (reason: string, message: string) =>
    recorder.event(object, { type: 'Warning', reason, action: 'Schedule', message, isOnce: true });
  for (let flip = 0; flip < 50; flip += 1) {
    tell('Unschedulable', `${flip} hosts are full`);
    tell('HostStarting', `Host ${flip} is starting`);
  }
  now += 600_000;
  tell('Unschedulable', 'still full');
  await recorder.flush(1_000);
  expect(sent).toEqual(['0 hosts are full', 'Host 0 is starting', 'still full']);
  expect(patches).toEqual([]);
});

it('Events of one object have names in the order of their times, also within a millisecond', async () => {
  let now = Date.parse('2026-01-01T00:00:00Z');
  const { recorder, tell, names } = recording(() => now);
  for (let count = 0; count < 20; count += 1) {
    now += count % 4 === 3 ? 1 : 0;
    tell(`number ${count}`);
  }
  await recorder.flush(1_000);
  expect(names).toHaveLength(20);
  expect(names).toEqual(names.toSorted());
});
