/** Credentials of a namespace for registries. Only administrators of the namespace may change them, and nobody reads a password here. */
import {
  registryCredentialListSchema,
  type RegistryCredentialRequest,
  registryCredentialRequestSchema,
  registryServerSchema,
} from '../../api/http/registrycredential.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import {
  entryText,
  PULL_SECRET_KEY,
  PULL_SECRET_TYPE,
  readRegistryCredentials,
  readServer,
  REGISTRIES_CONFIG_MAP,
  registrySecretName,
  type Server,
  SERVER_FORM,
  SERVER_NEEDS_INSECURE,
  serverUrl,
} from '../../api/v1alpha1/registrycredentials.ts';
import type { KubeClient } from '../../kube/client.ts';
import { CONFIG_MAPS, SECRETS } from '../../kube/core.ts';
import { isNotFound, unlessMissing } from '../../kube/errors.ts';
import { deleteAs } from '../callers/objects.ts';
import type { App } from '../http/app.ts';
import { StatusError } from '../http/errors.ts';
import { namespaceParams } from '../http/params.ts';

const PATH = '/api/v1/namespaces/:namespace/secrets/registrycredentials';
const tags = ['Registry credentials'];

export function addRegistryCredentialRoutes(app: App): void {
  const response = { 200: statusSchema };
  app.get(
    PATH,
    {
      schema: {
        summary: 'List the registries for which the namespace has credentials',
        tags,
        params: namespaceParams,
        response: { 200: registryCredentialListSchema },
      },
    },
    async ({ caller, params }) => await listCredentials(caller(), params.namespace),
  );
  app.post(
    `${PATH}/add`,
    {
      schema: {
        summary: 'Add the credential for a registry',
        tags,
        params: namespaceParams,
        body: registryCredentialRequestSchema,
        response,
      },
    },
    async ({ caller, params, body }) => {
      await addCredential(caller(), params.namespace, body);
      return success();
    },
  );
  app.delete(
    `${PATH}/remove`,
    {
      schema: {
        summary: 'Remove the credential for a registry',
        tags,
        params: namespaceParams,
        body: registryServerSchema,
        response,
      },
    },
    async ({ caller, params, body }) => {
      await removeCredential(caller(), params.namespace, serverOf(body.server));
      return success();
    },
  );
}

async function listCredentials(client: KubeClient, namespace: string) {
  const found = await unlessMissing(client.get(CONFIG_MAPS, { namespace, name: REGISTRIES_CONFIG_MAP }));
  const { credentials } = readRegistryCredentials(found?.data);
  const items = credentials.map(({ username, allowInsecure, ...server }) => ({
    server: serverUrl(server),
    username,
    allowInsecure,
  }));
  return { items };
}

/** Makes the Secret, and then the entry that names it. A Secret without an entry has no effect. */
async function addCredential(
  client: KubeClient,
  namespace: string,
  { server: url, username, password, allowInsecure = false, replace = false }: RegistryCredentialRequest,
): Promise<void> {
  const server = serverOf(url);
  if (server.scheme === 'http' && !allowInsecure) {
    throw mistakeIn('server', SERVER_NEEDS_INSECURE);
  }
  const secretName = registrySecretName(server.registry);
  if (replace) {
    await client.delete(SECRETS, { namespace, name: secretName });
  }
  const auths = { [server.registry]: { username, password } };
  await client.create(SECRETS, {
    metadata: { namespace, name: secretName },
    type: PULL_SECRET_TYPE,
    data: { [PULL_SECRET_KEY]: Buffer.from(JSON.stringify({ auths })).toString('base64') },
  });
  const entry = entryText({ ...server, secretName, username, allowInsecure });
  await writeEntry(client, namespace, { [secretName]: entry });
}

async function removeCredential(client: KubeClient, namespace: string, { registry }: Server): Promise<void> {
  const name = registrySecretName(registry);
  await deleteAs(client, SECRETS, { namespace, name });
  await writeEntry(client, namespace, { [name]: null });
}

/** Changes one entry and leaves the others, so that two changes at the same time both stay. */
async function writeEntry(
  client: KubeClient,
  namespace: string,
  data: Record<string, string | null>,
): Promise<void> {
  const ref = { namespace, name: REGISTRIES_CONFIG_MAP };
  try {
    await client.mergePatch(CONFIG_MAPS, ref, { data });
  } catch (error) {
    if (!isNotFound(error)) {
      throw error;
    }
    const present = Object.entries(data).filter((one): one is [string, string] => one[1] !== null);
    await client.create(CONFIG_MAPS, { metadata: ref, data: Object.fromEntries(present) });
  }
}

/** @throws StatusError 422 when the text is not the URL of a registry. */
function serverOf(url: string): Server {
  const server = readServer(url);
  if (server === undefined) {
    throw mistakeIn('server', SERVER_FORM);
  }
  return server;
}

function mistakeIn(field: string, message: string): StatusError {
  return new StatusError(422, `${field} ${message}`, {
    causes: [{ reason: 'FieldValueInvalid', field, message }],
  });
}
