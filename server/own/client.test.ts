import fastify from 'fastify';
import { expect, it } from 'vitest';
import { TOKEN_REVIEWS } from '../../kube/core.ts';
import type { Transport } from '../../kube/transport.ts';
import { sendError } from '../http/errors.ts';
import { OwnClient } from './client.ts';

const OWN = 'The Kubernetes API server refuses the account of the HTTP API';
const LACKS = 'nodes "a" is forbidden: User "server" cannot get resource "nodes" in API group ""';

it.each([
  [401, 'Unauthorized', 503, OWN],
  [403, LACKS, 503, OWN],
  [403, 'nodes "a" is forbidden: a policy denied the request', 403, 'a policy denied the request'],
  [404, 'nodes "a" not found', 404, 'nodes "a" not found'],
])('answers a refusal %i of its own request (%s) with %i', async (refusal, message, code, words) => {
  const body = { kind: 'Status', status: 'Failure', code: refusal, message };
  const request = async () => ({ status: refusal, body, retryAfterMilliseconds: undefined });
  const client = new OwnClient({ request } as unknown as Transport);
  const app = fastify();
  app.setErrorHandler(sendError);
  app.get('/', async () => await client.create(TOKEN_REVIEWS, { metadata: {}, spec: { token: 'a' } }));
  const answer = await app.inject('/');
  expect(answer.json()).toMatchObject({ code, message: expect.stringContaining(words) });
});
