import { X509Certificate } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { type Logger, pino } from 'pino';
import { Registry } from 'prom-client';
import { beforeAll, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { pause } from '../../base/time.ts';
import {
  type Certificate,
  createKey,
  selfSigned,
  parseValidity,
} from '../../kube/certificates/certificate.ts';
import type { KubeClient } from '../../kube/client.ts';
import { ApiError } from '../../kube/errors.ts';
import type { Transport } from '../../kube/transport.ts';
import { identityFiles, readPair, servingCertificate, writePair } from './certificates.ts';
import { keepCertificates, keepRenewed, renewalTime } from './rotation.ts';
import { makeFolder } from '../../test/support/folder.ts';

vi.mock(import('../../base/time.ts'), { spy: true });

const logger = pino({ level: 'silent' });
let certificate: Certificate;

beforeAll(async () => {
  const key = await createKey();
  certificate = { certificate: await selfSigned({ key, commonName: 'test', days: 40 }), key: key.pem };
});

test('a certificate is renewed at 70 to 90 percent of its life', () => {
  const { notBefore, notAfter } = parseValidity(certificate.certificate);
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
    setBack: (milliseconds: number) => {
      now -= milliseconds;
    },
    sleep: async (milliseconds: number): Promise<void> => {
      slept.push(milliseconds);
      now += milliseconds;
    },
  };
}

describe('the renewal of a certificate', () => {
  test('waits for its time, at most a minute at once, and then uses the new certificate', async () => {
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
    expect(Math.max(...time.slept)).toBeLessThanOrEqual(60_000);
  });

  test('does not follow the last one immediately, although the clock of the host is too fast', async () => {
    const stop = new AbortController();
    const time = clock(parseValidity(certificate.certificate).notAfter.getTime());
    let used = 0;
    await keepRenewed({
      current: certificate,
      request: async () => certificate,
      use: async () => {
        used += 1;
        if (used === 3) {
          stop.abort();
        }
      },
      logger,
      signal: stop.signal,
      ...time,
    });
    expect(time.slept).toEqual([60_000, 60_000]);
  });

  test('does not wait for the old time of a clock that was set back', async () => {
    const stop = new AbortController();
    const { setBack, ...time } = clock(parseValidity(certificate.certificate).notAfter.getTime());
    const day = 24 * 3_600_000;
    let asked = 0;
    const request = async () => {
      asked += 1;
      if (asked === 1) {
        throw new Error('the certificate of the API server has ended');
      }
      return certificate;
    };
    await keepRenewed({
      current: undefined,
      request,
      use: async () => {
        if (asked === 3) {
          stop.abort();
        }
      },
      logger,
      signal: stop.signal,
      now: time.now,
      sleep: async (milliseconds) => {
        await time.sleep(milliseconds);
        setBack(day);
        if (time.slept.length === 5) {
          stop.abort();
          throw new Error('too many waits');
        }
      },
    });
    expect(time.slept).toEqual([1_000, 60_000]);
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

test('a renewal ends with the error of the promise for which it waits, and makes no further attempt', async () => {
  const stop = new AbortController();
  const kept = keepRenewed({
    begin: Promise.reject(new Error('the Node cannot be read')),
    current: undefined,
    request: async () => certificate,
    use: async () => undefined,
    logger: { error: () => stop.abort() } as unknown as Logger,
    signal: stop.signal,
  });
  await expect(kept).rejects.toThrow('the Node cannot be read');
});

describe('a stored certificate', () => {
  const CERTIFIED = '192.0.2.7';
  let config: Parameters<typeof keepCertificates>[0]['config'];

  beforeEach(async () => {
    vi.mocked(pause).mockClear();
    const dataDirectory = makeFolder();
    const certificates = { clientSeconds: 3_600, servingSeconds: 3_600 };
    config = { nodeName: 'one', address: CERTIFIED, dataDirectory, certificates };
    const key = await createKey();
    for (const [kind, ipAddresses] of [
      ['client', []],
      ['serving', [CERTIFIED]],
    ] as const) {
      const pem = await selfSigned({ key, commonName: 'system:node:one', ipAddresses, days: 30 });
      writePair(identityFiles(dataDirectory)[kind], { certificate: pem, key: key.pem });
    }
  });

  interface Surroundings {
    nodeKnown?: Promise<void>;
    /** Answer of the API server to each request. */
    answer?: Error;
    isNode?: boolean;
    join?: () => Promise<Certificate>;
  }

  const REFUSED = new ApiError('Unauthorized', { status: 401, reason: 'Unauthorized' });
  const CLIENT = 'kubernetes.io/kube-apiserver-client-kubelet';

  /** Keeps the certificates until the signal aborts. Returns the list of the signers that are asked. */
  function keep(signal: AbortSignal, surroundings: Surroundings = {}): string[] {
    const {
      nodeKnown = Promise.resolve(),
      answer = new Error('no answer'),
      join,
      isNode = true,
    } = surroundings;
    const signers: string[] = [];
    const client = {
      create: async (_: unknown, { spec }: { spec: { signerName: string } }) => {
        signers.push(spec.signerName);
        throw answer;
      },
    };
    const kept = keepCertificates({
      config,
      client: client as unknown as KubeClient,
      isNode,
      join: async () => {
        signers.push('bootstrap');
        if (join === undefined) {
          throw new Error('no answer');
        }
        return await join();
      },
      nodeKnown,
      transport: { replaceCredentials: () => signers.push('in use') } as unknown as Transport,
      server: { replaceCertificate: () => undefined },
      metrics: new Registry(),
      logger,
      signal,
    });
    void Promise.all(kept);
    return signers;
  }

  async function shown(): Promise<X509Certificate> {
    return new X509Certificate((await servingCertificate(config)).certificate);
  }

  test('is shown and kept while the host has its address', async () => {
    expect((await shown()).subject).toBe('CN=system:node:one');
    const stop = new AbortController();
    const asked = keep(stop.signal);
    // Each of the two certificates waits for its renewal.
    await expect.poll(() => vi.mocked(pause).mock.calls.length).toBe(2);
    stop.abort();
    expect(asked).toEqual([]);
  });

  /** Sets the clock of the host to a time at which the stored certificates have expired. */
  function expire(): void {
    const later = Date.now() + 31 * 24 * 3_600_000;
    vi.spyOn(Date, 'now').mockReturnValue(later);
    onTestFinished(() => vi.mocked(Date.now).mockRestore());
  }

  test('waits for the Node, but an expired client certificate makes the host join again before', async () => {
    config.address = '192.0.2.8';
    const node = Promise.withResolvers<void>();
    const stop = new AbortController();
    expire();
    const asked = keep(stop.signal, { nodeKnown: node.promise, answer: REFUSED });
    await expect.poll(() => asked).toContain('bootstrap');
    expect(asked.slice(0, 2)).toEqual([CLIENT, 'bootstrap']);
    expect(asked).not.toContain('kubernetes.io/kubelet-serving');
    node.resolve();
    await expect.poll(() => asked).toContain('kubernetes.io/kubelet-serving');
    stop.abort();
  });

  test('is renewed if only the clock of the host says that it has expired', async () => {
    const stop = new AbortController();
    expire();
    const asked = keep(stop.signal, { nodeKnown: Promise.withResolvers<void>().promise });
    await expect.poll(() => asked.length).toBeGreaterThan(1);
    stop.abort();
    expect(new Set(asked)).toEqual(new Set([CLIENT]));
  });

  test('is replaced by joining again, and the first certificate by one with the whole lifetime', async () => {
    config.certificates.clientSeconds = 30 * 24 * 3_600;
    const files = identityFiles(config.dataDirectory);
    writeFileSync(
      files.kubeconfig,
      '{ clusters: [{ name: c, cluster: { server: "https://192.0.2.1" } }], contexts: [{ name: c, context: { cluster: c } }], current-context: c }',
    );
    const key = await createKey();
    const pem = await selfSigned({ key, commonName: 'system:node:one', days: 1 / 24 });
    const stop = new AbortController();
    expire();
    const asked = keep(stop.signal, {
      nodeKnown: Promise.withResolvers<void>().promise,
      answer: REFUSED,
      join: async () => ({ certificate: pem, key: key.pem }),
    });
    await expect.poll(() => asked.length).toBeGreaterThan(3);
    stop.abort();
    expect(asked.slice(0, 4)).toEqual([CLIENT, 'bootstrap', 'in use', CLIENT]);
    expect(readPair(files.client)?.key.trim()).toBe(key.pem.trim());
  });

  test('is requested from the named signer alone if the host has a kubeconfig of its own', async () => {
    config.address = '192.0.2.8';
    const stop = new AbortController();
    expect(keepCertificates({ config, isNode: false } as Parameters<typeof keepCertificates>[0])).toEqual([]);
    config.certificates.servingSigner = 'signer.example/hosts';
    const asked = keep(stop.signal, { isNode: false });
    await expect.poll(() => asked.length).toBeGreaterThan(1);
    stop.abort();
    expect(new Set(asked)).toEqual(new Set(['signer.example/hosts']));
  });

  test('is replaced immediately when the host has another address', async () => {
    config.address = '192.0.2.8';
    expect((await shown()).subjectAltName).toBe('IP Address:192.0.2.8');
    const stop = new AbortController();
    const asked = keep(stop.signal);
    await expect.poll(() => asked).toContain('kubernetes.io/kubelet-serving');
    stop.abort();
    expect(new Set(asked).size).toBe(1);
  });
});
