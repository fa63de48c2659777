import { expect, it } from 'vitest';
import { Transport } from './transport.ts';

it.each([
  ['registry.example', 'http://registry.example/'],
  ['registry.example:5000', 'http://registry.example:5000/'],
  ['registry.example:80', 'http://registry.example/'],
  ['registry.example:443', 'http://registry.example:443/'],
])('a registry that is configured as %s for plain HTTP is reached at %s', (host, url) => {
  const transport = new Transport({ allowLoopback: false, registries: [{ host, plainHttp: true }] });
  expect(transport.baseUrl(host).href).toBe(url);
});
