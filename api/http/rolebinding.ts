/** Subjects of a RoleBinding, as the HTTP API shows and changes them. */
import * as z from 'zod';
import { namespaceName, objectName } from '../v1alpha1/schema.ts';

/** Largest number of users in one request. The number of service accounts has the same limit. */
const SUBJECTS = 256;
/** Longest name of a user, in characters. Email addresses have the same limit. */
const USER_LENGTH = 320;

export const subjectListSchema = z
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

export const subjectsSchema = z.object({
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
export type SubjectRequest = z.infer<typeof subjectsSchema>;
