import { rm, writeFile } from 'node:fs/promises';
import { request } from 'node:https';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { type Authority, createAuthority, issue } from '../../hack/cluster/authority.ts';
import { type Certificate, createKey } from '../../kube/certificates/certificate.ts';
import type { KubeClient } from '../../kube/client.ts';
import { Authorizer } from '../../kube/serving/authorization.ts';
import { KubeletServer } from './server.ts';
import { makeFolder } from '../../test/support/folder.ts';

/** Longest time in milliseconds after which a changed file is in use. */
const LOOK_MILLISECONDS = 60_000;

let folder: string;
let clientCAFile: string;
let former: Authority;
let server: KubeletServer;
let port: number;

beforeEach(async () => {
  vi.useFakeTimers({ toFake: ['setInterval'] });
  folder = makeFolder();
  clientCAFile = join(folder, 'ca.crt');
  former = await createAuthority('former');
  await writeFile(clientCAFile, former.certificate);
  const everyRight = { create: async () => ({ status: { allowed: true } }) };
  server = new KubeletServer({
    nodeName: 'host',
    listenAddress: '127.0.0.1',
    port: 0,
    clientCAFile,
    certificate: await certificateOf(former, 'host'),
    authorizer: new Authorizer(everyRight as unknown as KubeClient),
    logs: async () => Readable.from(['booted\n']),
    transfers: () => () => undefined,
    streams: () => {
      throw new Error('no stream is expected');
    },
    unready: () => undefined,
    metrics: new Registry(),
    resources: { text: async () => 'node_cpu_usage_seconds_total 1 1\n' },
    logger: pino({ level: 'silent' }),
  });
  port = await server.listen();
});

afterEach(async () => {
  vi.useRealTimers();
  await server.close();
});

async function certificateOf(authority: Authority, commonName: string): Promise<Certificate> {
  const key = await createKey();
  return { certificate: await issue(authority, { key, commonName }), key: key.pem };
}

/** Returns the status of a request by a caller with a certificate of the authority. */
async function statusFor(
  authority: Authority,
  path = '/containerLogs/platform-ci/vm/machine',
): Promise<number | undefined> {
  const { certificate: cert, key } = await certificateOf(authority, 'kube-apiserver');
  const { promise, resolve, reject } = Promise.withResolvers<number | undefined>();
  const options = { host: '127.0.0.1', port, path, cert, key, rejectUnauthorized: false, agent: false };
  request(options, (response) => {
    response.resume();
    resolve(response.statusCode);
  })
    .on('error', reject)
    .end();
  return await promise;
}

it('accepts callers of a new authority when the file of the authorities has changed', async () => {
  const next = await createAuthority('next');
  expect(await statusFor(next)).toBe(401);
  await writeFile(clientCAFile, next.certificate);
  vi.advanceTimersByTime(LOOK_MILLISECONDS);
  expect([await statusFor(next), await statusFor(former)]).toEqual([200, 401]);
});

it.each([
  ['is missing', async () => await rm(clientCAFile)],
  ['is empty', async () => await writeFile(clientCAFile, '')],
])('keeps its authorities while their file %s, also with a new certificate', async (_, change) => {
  await change();
  vi.advanceTimersByTime(LOOK_MILLISECONDS);
  server.replaceCertificate(await certificateOf(former, 'host'));
  expect(await statusFor(former)).toBe(200);
});

it.each([
  ['/metrics', 200],
  ['/metrics/', 404],
  ['/metrics/cadvisor', 404],
  ['/metrics/probes', 404],
  ['/metrics/resource', 200],
  ['/metrics/resource/', 404],
  ['/stats/summary', 404],
  ['/pods', 404],
])(
  'answers %s with %i, because nobody may take the metrics of the agent for those of a kubelet',
  async (path, status) => {
    expect(await statusFor(former, path)).toBe(status);
  },
);
