import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { selfMadeCertificate, useCertificate } from '../../../kube/certificates/serving.ts';
import { checkNoDowngrade, RegistryTransport } from './transport.ts';
import { makeFolder } from '../../../test/support/folder.ts';

it.each([
  ['registry.example', 'http://registry.example/'],
  ['registry.example:5000', 'http://registry.example:5000/'],
  ['registry.example:80', 'http://registry.example/'],
  ['registry.example:443', 'http://registry.example:443/'],
])('a registry that is configured as %s for plain HTTP is reached at %s', (host, url) => {
  const transport = new RegistryTransport({
    allowLoopbackHttp: false,
    registries: [{ host, plainHttp: true }],
  });
  expect(transport.baseUrl(host).href).toBe(url);
});

it('follows the file of certificate authorities, and keeps them while the file is half written', async () => {
  const folder = makeFolder();
  const caFile = join(folder, 'ca.crt');
  const make = async () =>
    await selfMadeCertificate({ commonName: 'registry', dnsNames: [], ipAddresses: ['127.0.0.1'] })();
  const [before, after] = [await make(), await make()];
  const server = createServer({ cert: before.certificate, key: before.key }, (_, response) => {
    // Each request needs a new connection.
    response.setHeader('connection', 'close').end();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => void server.close());
  await writeFile(caFile, before.certificate);
  const host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  const transport = new RegistryTransport({ allowLoopbackHttp: true, registries: [{ host, caFile }] });
  onTestFinished(async () => await transport.close());
  const ask = async () => {
    const exchange = { method: 'GET', url: transport.baseUrl(host), headers: {}, what: 'The test' } as const;
    const { status, body } = await transport.send(exchange, AbortSignal.timeout(30_000));
    await body.dump();
    return status;
  };
  expect(await ask()).toBe(200);
  for (const part of ['', after.certificate.slice(0, after.certificate.length / 2)]) {
    await writeFile(caFile, part);
    expect(await ask()).toBe(200);
  }
  useCertificate(server, after);
  await expect(ask()).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
  await writeFile(caFile, after.certificate);
  expect(await ask()).toBe(200);
});

it.each([
  ['http://registry.example/v2/', true],
  ['http://other.example/v2/', false],
])(
  'a redirect from https to %s is refused; about its own host it names X-Forwarded-Proto: %s',
  (to, isNamed) => {
    let message = '';
    try {
      checkNoDowngrade(new URL('https://registry.example'), new URL(to), 'x');
    } catch (error) {
      message = String(error);
    }
    expect(message).toContain('is not allowed');
    expect(message.includes('X-Forwarded-Proto')).toBe(isNamed);
  },
);
