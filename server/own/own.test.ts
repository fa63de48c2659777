import fastify from 'fastify';
import { expect, it } from 'vitest';
import { TOKEN_REVIEWS } from '../../kube/core.ts';
import type { Transport } from '../../kube/transport.ts';
import { sendError } from '../http/errors.ts';
import { type Own, OwnClient, refuseMissingNamespaces } from './own.ts';
import type { App } from '../http/app.ts';

const OWN = 'The Kubernetes API server refuses the account of the HTTP API';
const LACKS = 'nodes "a" is forbidden: User "server" cannot get resource "nodes" in API group ""';

it.each([
  [401, 'Unauthorized', 503, OWN],
  [403, LACKS, 503, OWN],
  [403, 'nodes "a" is forbidden: a policy denied the request', 403, 'a policy denied the request'],
  [404, 'nodes "a" not found', 404, 'nodes "a" not found'],
])('answers a refusal %i of its own request (%s) with %i', async (refusal, message, code, expected) => {
  const body = { kind: 'Status', status: 'Failure', code: refusal, message };
  const request = async () => ({ status: refusal, body, retryAfterMilliseconds: undefined });
  const client = new OwnClient({ request } as unknown as Transport);
  const app = fastify();
  app.setErrorHandler(sendError);
  app.get('/', async () => await client.create(TOKEN_REVIEWS, { metadata: {}, spec: { token: 'a' } }));
  const answer = await app.inject('/');
  expect(answer.json()).toMatchObject({ code, message: expect.stringContaining(expected) });
});

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
