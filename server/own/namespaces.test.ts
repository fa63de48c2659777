import fastify from 'fastify';
import { expect, it } from 'vitest';
import type { App } from '../http/app.ts';
import { sendError } from '../http/errors.ts';
import { refuseMissingNamespaces } from './namespaces.ts';
import type { Own } from './own.ts';

/** Namespaces of the API server. The watch does not show the second one yet. */
const NAMESPACES = ['old', 'new'];

const own = {
  watches: { namespace: (name: string) => (name === 'old' ? {} : undefined) },
  client: {
    list: async (_type: unknown, { fieldSelector }: { fieldSelector: string }) => ({
      items: NAMESPACES.filter((name) => fieldSelector === `metadata.name=${name}`),
    }),
  },
} as unknown as Own;

async function codeOf(namespace: string, payload: unknown): Promise<number> {
  const app = fastify() as unknown as App;
  app.setErrorHandler(sendError);
  refuseMissingNamespaces(app, own);
  app.get('/:namespace', () => payload);
  return (await app.inject(`/${namespace}`)).statusCode;
}

it.each([
  [404, 'none', { items: [] }],
  [404, 'none', { items: [{ namespace: 'default' }] }],
  [200, 'none', { items: [{ namespace: 'none' }] }],
  [200, 'none', { items: [{ name: 'vm' }] }],
  [200, 'none', { name: 'vm' }],
  [200, 'old', { items: [] }],
  [200, 'new', { items: [{ namespace: 'default' }] }],
])('answers %i in namespace %s for %j', async (code, namespace, payload) => {
  expect(await codeOf(namespace, payload)).toBe(code);
});
