import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import { ControllerSecrets } from './controller.ts';

/** Interval of readings of the power, in which the operator asks for the credentials. */
const POLL_MILLISECONDS = 30_000;
const SERVER = {
  spec: { addresses: ['192.0.2.1'], controller: { ipmi: { address: '192.0.2.2' }, secretName: 'bmc' } },
};

/** Present time in milliseconds for the cache, which reads it from `performance`, and takes 0 for no time. */
let now = 1;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout'] });
  vi.spyOn(performance, 'now').mockImplementation(() => now);
});

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

it('reads a changed Secret within five minutes, also if the controller is asked all the time', async () => {
  const encode = (text: string): string => Buffer.from(text).toString('base64');
  let password = 'first';
  const client = {
    get: async () => ({
      type: 'kubernetes.io/basic-auth',
      data: { username: encode('berth'), password: encode(password) },
    }),
  } as unknown as KubeClient;
  const secrets = new ControllerSecrets(client, 'berth-system');
  await expect(secrets.of(SERVER)).resolves.toEqual({ username: 'berth', password: 'first' });
  password = 'second';
  const seen: (string | undefined)[] = [];
  for (let waited = 0; waited <= 300_000; waited += POLL_MILLISECONDS) {
    now += POLL_MILLISECONDS;
    vi.advanceTimersByTime(POLL_MILLISECONDS);
    seen.push((await secrets.of(SERVER))?.password);
  }
  expect(seen[0]).toBe('first');
  expect(seen.at(-1)).toBe('second');
});

it('reads the Secret again at once after the controller has refused the password', async () => {
  let reads = 0;
  const client = {
    get: async () => {
      reads += 1;
      return { type: 'kubernetes.io/basic-auth', data: { username: '', password: '' } };
    },
  } as unknown as KubeClient;
  const secrets = new ControllerSecrets(client, 'berth-system');
  await secrets.of(SERVER);
  await secrets.of(SERVER);
  expect(reads).toBe(1);
  secrets.forget(SERVER);
  await secrets.of(SERVER);
  expect(reads).toBe(2);
});
