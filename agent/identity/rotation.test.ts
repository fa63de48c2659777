import { pino } from 'pino';
import { beforeAll, describe, expect, test } from 'vitest';
import { type Certificate, createKey, selfSigned, validityOf } from '../../kube/certificates/certificate.ts';
import { keepRenewed, renewalTime } from './rotation.ts';

const logger = pino({ level: 'silent' });
let certificate: Certificate;

beforeAll(async () => {
  const key = await createKey();
  certificate = { certificate: await selfSigned({ key, commonName: 'test', days: 40 }), key: key.pem };
});

test('a certificate is renewed at 70 to 90 percent of its life', () => {
  const { notBefore, notAfter } = validityOf(certificate.certificate);
  const life = notAfter.getTime() - notBefore.getTime();
  expect(renewalTime(certificate.certificate, 0)).toBe(notBefore.getTime() + life * 0.7);
  expect(renewalTime(certificate.certificate, 1)).toBeCloseTo(notBefore.getTime() + life * 0.9);
});

/** Returns a clock that advances only when a test sleeps. */
function clock(from: number) {
  const slept: number[] = [];
  let now = from;
  return {
    slept,
    now: () => now,
    sleep: async (milliseconds: number): Promise<void> => {
      slept.push(milliseconds);
      now += milliseconds;
    },
  };
}

describe('the renewal of a certificate', () => {
  test('waits for its time, at most a day at once, and then uses the new certificate', async () => {
    const stop = new AbortController();
    const time = clock(Date.now());
    const used: Certificate[] = [];
    const askedAt: number[] = [];
    await keepRenewed({
      current: certificate,
      request: async () => {
        askedAt.push(time.now());
        return certificate;
      },
      use: async (one) => {
        used.push(one);
        stop.abort();
      },
      logger,
      signal: stop.signal,
      random: () => 0,
      ...time,
    });
    expect(used).toEqual([certificate]);
    expect(askedAt).toEqual([renewalTime(certificate.certificate, 0)]);
    expect(Math.max(...time.slept)).toBeLessThanOrEqual(24 * 3600 * 1000);
  });

  test('is requested at once if there is none, and again after a refusal, less and less often', async () => {
    const stop = new AbortController();
    const time = clock(0);
    let asked = 0;
    await keepRenewed({
      current: undefined,
      request: async () => {
        asked += 1;
        if (asked === 9) {
          stop.abort();
        }
        throw new Error('denied');
      },
      use: async () => undefined,
      logger,
      signal: stop.signal,
      ...time,
    });
    expect(time.slept).toEqual([1, 2, 4, 8, 16, 32, 60, 60].map((seconds) => seconds * 1000));
  });
});
