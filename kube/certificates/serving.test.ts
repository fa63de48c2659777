import { createServer } from 'node:https';
import { pino } from 'pino';
import { expect, it } from 'vitest';
import { selfMadeCertificate, serveCertificate } from './serving.ts';

it('logs the reason why a certificate is not usable once, and again when it comes back', async () => {
  const usable = selfMadeCertificate({ commonName: 'berth', dnsNames: ['localhost'], algorithm: 'ECDSA' });
  const fails = (message: string) => () => Promise.reject(new Error(message));
  const [missing, broken] = [fails('no such file'), fails('not a certificate')];
  const looks = [usable, missing, missing, broken, broken, usable, broken];
  const lines: string[] = [];
  const end = new AbortController();
  const server = createServer();
  await serveCertificate(server, {
    provider: async () => await (looks.shift() ?? usable)(),
    logger: pino({ level: 'error' }, { write: (line) => lines.push(line) }),
    signal: end.signal,
    lookMilliseconds: 1,
    onServed: () => undefined,
  });
  await expect.poll(() => looks.length).toBe(0);
  end.abort();
  const written = lines.map((line) => (JSON.parse(line) as { err: { message: string } }).err.message);
  expect(written).toEqual(['no such file', 'not a certificate', 'not a certificate']);
});
