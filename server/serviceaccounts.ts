/** Routes for the service accounts of a namespace and for their tokens. */
import { ADMINS, onObject } from './own/rights.ts';
import * as z from 'zod';
import { statusSchema, success } from '../api/http/status.ts';
import {
  lifeSeconds,
  serviceAccountListSchema,
  tokenItem,
  tokenRequestSchema,
  tokenSchema,
} from '../api/http/serviceaccount.ts';
import { listQuerySchema } from '../api/http/request.ts';
import { DEV_ROLE } from '../api/v1alpha1/names.ts';
import { requestToken } from '../kube/accounttoken.ts';
import { SERVICE_ACCOUNTS } from '../kube/core.ts';
import { createMember, deleteMember } from '../kube/members.ts';
import { listAs } from './callers/list.ts';
import { checked } from './callers/objects.ts';
import type { App } from './http/app.ts';
import { namespaceParams, NAMESPACES_PATH } from './http/namespaces.ts';
import { SAMPLE } from './http/samples.ts';

const ACCOUNTS_PATH = `${NAMESPACES_PATH}/:namespace/serviceaccounts`;
const ACCOUNT_PATH = `${ACCOUNTS_PATH}/:name`;
const tags = ['Service accounts'];
const accountParams = namespaceParams.extend({
  name: z
    .string()
    .min(1)
    .max(253)
    .meta({ description: 'Name of the service account.', examples: [SAMPLE.new] }),
});

export function addServiceAccountRoutes(app: App): void {
  addList(app);
  addChanges(app);
  addToken(app);
}

function addList(app: App): void {
  app.get(
    ACCOUNTS_PATH,
    {
      schema: {
        summary: 'List the service accounts of a namespace',
        description: 'Programs such as CI systems use service accounts. The list can be read in pages.',
        roles: ADMINS,
        tags,
        params: namespaceParams,
        querystring: listQuerySchema,
        response: { 200: serviceAccountListSchema },
      },
    },
    async ({ caller, params: { namespace }, query }) =>
      await listAs(caller(), SERVICE_ACCOUNTS, { namespace, ...query }, ({ metadata: { name } }) => ({
        name,
        namespace,
      })),
  );
}

function addChanges(app: App): void {
  const response = { 200: statusSchema };
  app.post(
    ACCOUNT_PATH,
    {
      schema: {
        summary: 'Create a service account with the role dev in its namespace',
        description: 'The request needs no body. The path that ends with /token makes its tokens.',
        roles: ADMINS,
        tags,
        params: accountParams,
        response,
      },
    },
    async ({ caller, params }) => {
      await createMember(caller(), params, DEV_ROLE);
      return success();
    },
  );
  app.delete(
    ACCOUNT_PATH,
    {
      schema: {
        summary: 'Delete a service account. All its tokens become invalid',
        description: 'The service account also loses its role in the namespace.',
        roles: ADMINS,
        tags,
        params: accountParams,
        response,
      },
    },
    async ({ caller, params }) => {
      await deleteMember(caller(), checked(SERVICE_ACCOUNTS, params), DEV_ROLE);
      return success();
    },
  );
}

function addToken(app: App): void {
  app.post(
    `${ACCOUNT_PATH}/token`,
    {
      config: {
        right: onObject({ verb: 'create', group: '', resource: 'serviceaccounts', subresource: 'token' }),
      },
      schema: {
        summary:
          'Create a token of a service account. The token becomes invalid when the service account is deleted',
        description: 'The answer shows the token once. Send it in the header `Authorization: Bearer TOKEN`.',
        roles: ADMINS,
        sample: { duration: '1h' },
        tags,
        params: accountParams,
        body: tokenRequestSchema,
        response: { 200: tokenSchema },
      },
    },
    async ({ caller, params, body }, reply) => {
      const wanted = lifeSeconds(body);
      const token = await requestToken(caller(), checked(SERVICE_ACCOUNTS, params), wanted);
      return await reply.header('cache-control', 'no-store').send(tokenItem(token, wanted));
    },
  );
}
