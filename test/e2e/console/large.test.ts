/**
 * The console in a real Chromium with 1,000 VMs on 250 simulated hosts, of which some change all the time. It runs on request (`make real`),
 * because it needs Debian's package chromium, and minutes for the VMs.
 */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { LargeConsole } from '../../worlds/largeconsole.ts';

const FLEET = { hosts: 250, vms: 1_000 } as const;
const START_MILLISECONDS = 1_200_000;
/** Largest number of rows in the page. */
const ROWS = 200;
const SECONDS = 20;

let large: LargeConsole;

beforeAll(async () => {
  large = await LargeConsole.start(FLEET);
}, START_MILLISECONDS);

afterAll(async () => {
  await large?.[Symbol.asyncDispose]();
});

it.each(['#/fleet', '#/vms'])(
  '%s has few rows, and renders changes at most once per second',
  async (address) => {
    await large.show(address);
    const { rows, renders } = await large.watch(SECONDS, { scrolls: false });
    expect(rows).toBeGreaterThan(0);
    expect(rows).toBeLessThanOrEqual(ROWS);
    expect(renders).toBeGreaterThan(0);
    // One more, because the first second may have two.
    expect(renders).toBeLessThanOrEqual(SECONDS + 1);
  },
);

it.each(['#/fleet', '#/vms'])('%s has few rows also while it scrolls', async (address) => {
  await large.show(address);
  const { rows } = await large.watch(SECONDS, { scrolls: true });
  expect(rows).toBeGreaterThan(0);
  expect(rows).toBeLessThanOrEqual(ROWS);
});
