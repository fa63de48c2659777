import { describe, expect, it } from 'vitest';
import { liveThroughDay } from '../../../test/worlds/demandday.ts';

/** Time limit in milliseconds for a simulated day, on a machine that may run other work at the same time. */
const TIMEOUT_MILLISECONDS = 120_000;

describe('a day of 50 hosts whose power follows the demand', { timeout: TIMEOUT_MILLISECONDS }, () => {
  it('keeps no VM waiting longer than the boot time and 10 s, also at bursts, and saves half of the host-hours', () => {
    const bootSeconds = 180;
    const day = liveThroughDay({
      hosts: 50,
      slots: 4,
      bootSeconds,
      acceptMilliseconds: 500,
      emptySeconds: 900,
      floor: 2,
      seed: 1,
    });
    expect(day.faults).toEqual([]);
    expect(day.vms).toBeGreaterThan(4_000);
    expect(day.longestWaitSeconds).toBeGreaterThan(bootSeconds);
    expect(day.longestWaitSeconds).toBeLessThanOrEqual(bootSeconds + 10);
    expect(day.hostHours).toBeLessThan(day.allHostHours / 2);
    expect(Math.min(...day.samples.map(({ hostsOn }) => hostsOn))).toBeGreaterThanOrEqual(2);
    // Hosts do not flap: each one is switched on at most a few times a day.
    expect(day.switchedOn).toBeLessThan(3 * 50);
  });
});
