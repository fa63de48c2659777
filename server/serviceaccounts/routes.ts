/** Service accounts of a namespace and their tokens. */
import * as z from 'zod';
import { statusSchema, success } from '../../api/http/status.ts';
import { serviceAccountListSchema, tokenRequestSchema, tokenSchema } from '../../api/http/serviceaccount.ts';
import { listQuerySchema } from '../../api/http/list.ts';
import type { KubeClient } from '../../kube/client.ts';
import { SERVICE_ACCOUNTS } from '../../kube/core.ts';
import { isNotFound } from '../../kube/errors.ts';
import { listAs } from '../callers/list.ts';
import { deleteAs, type NamespacedRef } from '../callers/objects.ts';
import type { App } from '../http/app.ts';
import { namespaceParams, NAMESPACES_PATH } from '../http/params.ts';
import { addSubjects, removeSubjects } from '../rolebindings/subjects.ts';
import { requestToken } from './token.ts';

const ACCOUNTS_PATH = `${NAMESPACES_PATH}/:namespace/serviceaccounts`;
const ACCOUNT_PATH = `${ACCOUNTS_PATH}/:name`;
const tags = ['Service accounts'];
const accountParams = namespaceParams.extend({ name: z.string().min(1).max(253) });

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
        tags,
        params: accountParams,
        response,
      },
    },
    async ({ caller, params }) => {
      await createMember(caller(), params);
      return success();
    },
  );
  app.delete(
    ACCOUNT_PATH,
    {
      schema: {
        summary: 'Delete a service account. All its tokens end',
        tags,
        params: accountParams,
        response,
      },
    },
    async ({ caller, params }) => {
      await deleteMember(caller(), params);
      return success();
    },
  );
}

function addToken(app: App): void {
  app.post(
    `${ACCOUNT_PATH}/token`,
    {
      schema: {
        summary: 'Create a token of a service account. It ends with the service account',
        tags,
        params: accountParams,
        body: tokenRequestSchema,
        response: { 200: tokenSchema },
      },
    },
    async ({ caller, params, body }, reply) => {
      const token = await requestToken(caller(), params, body);
      return await reply.header('cache-control', 'no-store').send(token);
    },
  );
}

/**
 * Creates the account and gives it the role. If the role cannot be given, the account is deleted again, so that the request can be
 * repeated.
 */
async function createMember(client: KubeClient, ref: NamespacedRef): Promise<void> {
  const { metadata } = await client.create(SERVICE_ACCOUNTS, { metadata: ref });
  try {
    await addSubjects(client, ref.namespace, { serviceaccounts: [ref] });
  } catch (error) {
    await client.delete(SERVICE_ACCOUNTS, ref, { uid: metadata.uid });
    throw error;
  }
}

/** Deletes the account, and then takes the role from its name. A repeated request takes the role that an interrupted one has left. */
async function deleteMember(client: KubeClient, ref: NamespacedRef): Promise<void> {
  const takeRole = async () => await removeSubjects(client, ref.namespace, { serviceaccounts: [ref] });
  try {
    await deleteAs(client, SERVICE_ACCOUNTS, ref);
  } catch (error) {
    if (isNotFound(error)) {
      await takeRole();
    }
    throw error;
  }
  await takeRole();
}
