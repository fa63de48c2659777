/** Routes for the members of a namespace. */
import * as z from 'zod';
import { ADMINS, type RouteRight } from './own/rights.ts';
import { statusSchema, success } from '../api/http/status.ts';
import { DEV_ROLE } from '../api/v1alpha1/names.ts';
import type { KubeClient } from '../kube/client.ts';
import { addSubjects, listSubjects, removeSubjects, type RoleRef } from '../kube/members.ts';
import type { App } from './http/app.ts';
import { notFound } from './http/errors.ts';
import { namespaceParams, NAMESPACES_PATH } from './http/namespaces.ts';
import { SAMPLE } from './http/samples.ts';
import { namespaceName, objectName } from '../api/v1alpha1/schema.ts';

/** Largest number of users in one request. The number of service accounts has the same limit. */
const SUBJECTS = 256;
/** Longest name of a user, in characters. Email addresses have the same limit. */
const USER_LENGTH = 320;

const subjectListSchema = z
  .object({
    items: z.array(
      z
        .object({
          kind: z.string().meta({ description: 'User, Group or ServiceAccount.' }),
          name: z.string(),
          namespace: z.string().optional().meta({ description: 'Namespace of a service account.' }),
        })
        .meta({ id: 'Subject' }),
    ),
  })
  .meta({ id: 'SubjectList', description: 'The members of a role.' });

const subjectsSchema = z.object({
  users: z
    .array(z.string().min(1).max(USER_LENGTH))
    .max(SUBJECTS)
    .optional()
    .meta({ description: 'Names of users, in the spelling of the API server.' }),
  serviceaccounts: z
    .array(
      z.object({
        kind: z
          .literal('ServiceAccount')
          .optional()
          .meta({ description: 'Kind of the subject, as lists of subjects have it.' }),
        name: objectName('Name of the service account.'),
        namespace: namespaceName('Namespace of the service account.'),
      }),
    )
    .max(SUBJECTS)
    .optional(),
});
type SubjectRequest = z.infer<typeof subjectsSchema>;

const SUBJECTS_PATH = `${NAMESPACES_PATH}/:namespace/rolebindings/:binding/subjects`;
const tags = ['Role bindings'];
/** Right to change the members of the role. */
const changeOfMembers: RouteRight = ({ namespace = '', binding = '' }) => ({
  verb: 'patch',
  group: 'rbac.authorization.k8s.io',
  resource: 'rolebindings',
  namespace,
  name: binding,
});
const bindingParams = namespaceParams.extend({
  binding: z.string().meta({ description: `Name of the RoleBinding: ${DEV_ROLE}.`, examples: [DEV_ROLE] }),
});

export function addRoleBindingRoutes(app: App): void {
  app.get(
    SUBJECTS_PATH,
    {
      schema: {
        summary: 'List the users, groups and service accounts with the role dev in a namespace',
        description: 'The role dev lets its members use VMs and images in the namespace.',
        roles: ADMINS,
        tags,
        params: bindingParams,
        response: { 200: subjectListSchema },
      },
    },
    async ({ caller, params: { namespace, binding } }) => {
      const client = caller();
      requireDev(binding);
      const subjects = await listSubjects(client, { namespace, name: DEV_ROLE });
      return { items: subjects.map(({ kind, name, namespace }) => ({ kind, name, namespace })) };
    },
  );
  addChange(app, {
    method: 'POST',
    action: 'add',
    summary: 'Give the role dev to subjects',
    change: addSubjects,
  });
  addChange(app, {
    method: 'DELETE',
    action: 'remove',
    summary: 'Remove the role dev from subjects. Subjects that do not have the role are ignored',
    change: removeSubjects,
  });
}

interface Change {
  readonly method: 'POST' | 'DELETE';
  readonly action: string;
  readonly summary: string;
  readonly change: (client: KubeClient, role: RoleRef, subjects: SubjectRequest) => Promise<void>;
}

function addChange(app: App, { method, action, summary, change }: Change): void {
  app.route({
    method,
    url: `${SUBJECTS_PATH}/${action}`,
    config: { right: changeOfMembers },
    schema: {
      summary,
      description: 'The request names users, service accounts or both.',
      roles: ADMINS,
      sample: { users: [SAMPLE.user] },
      tags,
      params: bindingParams,
      body: subjectsSchema,
      response: { 200: statusSchema },
    },
    handler: async ({ caller, params: { namespace, binding }, body }) => {
      const client = caller();
      requireDev(binding);
      await change(client, { namespace, name: DEV_ROLE }, body);
      return success();
    },
  });
}

/** Refuses a request for any RoleBinding except the one for the role dev. @throws StatusError 404 */
function requireDev(binding: string): void {
  if (binding !== DEV_ROLE) {
    throw notFound('rolebindings', binding);
  }
}
