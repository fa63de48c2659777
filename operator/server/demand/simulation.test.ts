import { describe, expect, it } from 'vitest';
import { liveThroughDay } from '../../../test/worlds/demandday.ts';

/** Boot time of a host in seconds. */
const BOOT_SECONDS = 180;
/** Time limit in milliseconds for a simulated day, on a machine that may run other work at the same time. */
const TIMEOUT_MILLISECONDS = 120_000;

describe('a day of 50 hosts whose power follows the demand', { timeout: TIMEOUT_MILLISECONDS }, () => {
  // Without the choice of the VMs that a host gets when it opens, the scheduler lets VMs of these days wait for up to 346 s.
  it.each([1, 2])(
    'keeps no VM waiting longer than the boot time and 10 s, also at bursts, and saves half of the host-hours (day %d)',
    (seed) => {
      const day = liveThroughDay({
        hosts: 50,
        slots: 4,
        bootSeconds: BOOT_SECONDS,
        acceptMilliseconds: 500,
        emptySeconds: 900,
        floor: 2,
        seed,
      });
      expect(day.faults).toEqual([]);
      expect(day.vms).toBeGreaterThan(4_000);
      expect(day.longestWaitSeconds).toBeGreaterThan(BOOT_SECONDS);
      expect(day.longestWaitSeconds).toBeLessThanOrEqual(BOOT_SECONDS + 10);
      expect(day.hostHours).toBeLessThan(day.allHostHours / 2);
      expect(Math.min(...day.samples.map(({ hostsOn }) => hostsOn))).toBeGreaterThanOrEqual(2);
      // Hosts do not flap: each one is switched on at most a few times a day.
      expect(day.switchedOn).toBeLessThan(3 * 50);
    },
  );
});
