import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { JOB_TIMES_LIMIT, JOB_TIMES_NAMESPACES } from '../../../api/v1alpha1/jobtimelimits.ts';
import { parseJobTimes } from '../../../api/v1alpha1/jobtimes.ts';
import { JobTimesRing } from './ring.ts';

const MINUTE = 60_000;
const DAY = 1_440 * MINUTE;
const NOW = Date.parse('2026-11-30T12:00:00Z');

function id(name: string) {
  return { name, uid: `uid of ${name}`.slice(0, 36) };
}

async function stored(ring: JobTimesRing, now: number): Promise<Record<string, string | null>> {
  let last: Readonly<Record<string, string | null>> = {};
  await ring.storeChanges(now, async (documents) => {
    last = documents;
    await Promise.resolve();
  });
  return last;
}

function parse(text: string | null | undefined) {
  const document = parseJobTimes(text ?? '');
  if (document === undefined) {
    throw new Error(`Not readable: ${text}`);
  }
  return document;
}

it('keeps count, sum and longest of the waits and runs of each five minutes', async () => {
  const ring = new JobTimesRing();
  ring.add(id('shop'), 'waited', 2.4, NOW);
  ring.add(id('shop'), 'waited', 60, NOW + MINUTE);
  ring.add(id('shop'), 'ran', 600, NOW + 6 * MINUTE);
  const index = NOW / (5 * MINUTE);
  const { shop } = await stored(ring, NOW + 6 * MINUTE);
  expect(parse(shop)).toEqual({
    namespaceUid: 'uid of shop',
    begunAt: '2026-11-30T12:00:00Z',
    entries: [
      [index, 2, 62, 60, 0, 0, 0],
      [index + 1, 0, 0, 0, 1, 600, 600],
    ],
  });
});

it('stores what has changed, again if the store failed, and null for what is over', async () => {
  const ring = new JobTimesRing();
  ring.add(id('shop'), 'waited', 1, NOW);
  ring.add(id('team'), 'waited', 1, NOW + DAY - MINUTE);
  const failure = ring.storeChanges(NOW, async () => await Promise.reject(new Error('away')));
  await expect(failure).rejects.toThrow('away');
  expect(Object.keys(await stored(ring, NOW)).toSorted()).toEqual(['shop', 'team']);
  expect(ring.hasChanges).toBe(false);
  ring.add(id('team'), 'ran', 1, NOW + DAY);
  expect(await stored(ring, NOW + DAY)).toMatchObject({ shop: null, team: expect.any(String) });
  ring.forget('team');
  expect(await stored(ring, NOW + DAY)).toEqual({ team: null });
});

it('continues the times of an earlier process, and tells when it began itself', async () => {
  const first = new JobTimesRing();
  first.add(id('shop'), 'waited', 10, NOW);
  first.add(id('old'), 'waited', 10, NOW - 2 * DAY);
  first.add(id('shop'), 'waited', 20, NOW + 20 * MINUTE);
  const second = new JobTimesRing();
  const documents = (await stored(first, NOW)) as Record<string, string>;
  second.restore({ ...documents, broken: '{"entries": 1}' }, NOW + 22 * MINUTE, (name) => id(name).uid);
  second.add(id('shop'), 'waited', 30, NOW + 23 * MINUTE);
  const { shop, broken } = await stored(second, NOW + 23 * MINUTE);
  expect(broken).toBeNull();
  expect(parse(shop)).toMatchObject({
    begunAt: '2026-11-30T12:22:00Z',
    entries: [
      [expect.anything(), 1, 10, 10, 0, 0, 0],
      [expect.anything(), 2, 50, 30, 0, 0, 0],
    ],
  });
});

it('stays small and readable, whatever it measures and however the clock moves', async () => {
  const time = fc.record({
    namespace: fc.nat(80).map((number) => `platform-${'n'.repeat(50)}-${number}`),
    measure: fc.constantFrom('waited' as const, 'ran' as const),
    seconds: fc.double(),
    at: fc.integer({ min: NOW - DAY, max: NOW + DAY }),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(time, { maxLength: 400 }), async (times) => {
      const ring = new JobTimesRing();
      times.forEach(({ namespace, measure, seconds, at }) => ring.add(id(namespace), measure, seconds, at));
      const kept = Object.values(await stored(ring, NOW)).filter((text) => text !== null);
      expect(kept.length).toBeLessThanOrEqual(JOB_TIMES_NAMESPACES);
      kept.forEach((text) => expect(parse(text).entries.length).toBeLessThanOrEqual(JOB_TIMES_LIMIT));
    }),
  );
});

it('needs less than 1 MiB for as many busy namespaces as it keeps', async () => {
  const ring = new JobTimesRing();
  const namespaces = Array.from({ length: JOB_TIMES_NAMESPACES + 1 }, (_, number) => `platform-${number}`);
  for (let slice = 0; slice < JOB_TIMES_LIMIT; slice += 1) {
    for (const namespace of namespaces) {
      const isKept = ring.add(id(namespace), 'ran', 40_000_000, NOW + slice * 5 * MINUTE);
      expect(isKept).toBe(namespace !== namespaces.at(-1));
      ring.add(id(namespace), 'waited', 40_000_000, NOW + slice * 5 * MINUTE);
    }
  }
  const text = JSON.stringify(await stored(ring, NOW + DAY - 5 * MINUTE));
  expect(text.length).toBeLessThan(1024 * 1024);
});
