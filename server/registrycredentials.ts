/**
 * Routes for the credentials with which a namespace uses registries. Only administrators of the namespace have the right to change them. No
 * route returns a password.
 */
import { addCredential, listCredentials, removeCredential } from '../actions/credentials.ts';
import { REGISTRIES_CONFIG_MAP } from '../api/v1alpha1/registrycredentials.ts';
import { ADMINS, MEMBERS, type RouteRight } from './own/rights.ts';
import {
  registryCredentialListSchema,
  registryCredentialRequestSchema,
  registryServerSchema,
} from '../api/http/registrycredential.ts';
import { statusSchema, success } from '../api/http/status.ts';
import type { App } from './http/app.ts';
import { namespaceParams } from './http/namespaces.ts';
import { SAMPLE } from './http/samples.ts';

const PATH = '/api/v1/namespaces/:namespace/secrets/registrycredentials';
const tags = ['Registry credentials'];
/** Right to change the list of a namespace's credentials. */
const CHANGE: RouteRight = ({ namespace = '' }) => ({
  verb: 'update',
  group: '',
  resource: 'configmaps',
  namespace,
  name: REGISTRIES_CONFIG_MAP,
});

export function addRegistryCredentialRoutes(app: App): void {
  const response = { 200: statusSchema };
  app.get(
    PATH,
    {
      schema: {
        summary: 'List the registries for which the namespace has credentials',
        description: 'The list shows no passwords.',
        roles: MEMBERS,
        tags,
        params: namespaceParams,
        response: { 200: registryCredentialListSchema },
      },
    },
    async ({ caller, params }) => ({ items: await listCredentials(caller(), params.namespace) }),
  );
  app.post(
    `${PATH}/add`,
    {
      config: { right: CHANGE },
      schema: {
        summary: 'Add the credential for a registry',
        description:
          'Hosts use the credential to fetch images of VMs in this namespace, and pushes use it too.',
        roles: ADMINS,
        sample: { server: SAMPLE.registry, username: 'ci', password: 'secret' },
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
      config: { right: CHANGE },
      schema: {
        summary: 'Remove the credential for a registry',
        description: 'Images that hosts already have stay usable until VMs need them again.',
        roles: ADMINS,
        sample: { server: SAMPLE.registry },
        tags,
        params: namespaceParams,
        body: registryServerSchema,
        response,
      },
    },
    async ({ caller, params, body }) => {
      await removeCredential(caller(), params.namespace, body.server);
      return success();
    },
  );
}
