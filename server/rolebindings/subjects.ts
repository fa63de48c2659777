/** Reads and changes the members of a namespace: the subjects of the RoleBinding of the role dev. */
import type { Subjects } from '../../api/http/rolebinding.ts';
import { DEV_ROLE } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { ROLE_BINDINGS, type RoleBinding, type Subject } from '../../kube/core.ts';
import { isAlreadyExists, isConflict, unlessMissing } from '../../kube/errors.ts';
import { StatusError } from '../http/errors.ts';

const RBAC_GROUP = 'rbac.authorization.k8s.io';
/** Limit of attempts. The operator and other people change the same RoleBinding, but seldom. */
const ATTEMPTS = 10;

/** Returns the subjects; none without a RoleBinding. @throws ApiError when the API server refuses. */
export async function listSubjects(client: KubeClient, namespace: string): Promise<readonly Subject[]> {
  return (await bindingIn(client, namespace))?.subjects ?? [];
}

/** Adds the subjects that are missing. @throws ApiError when the API server refuses. @throws StatusError 409 for another role. */
export async function addSubjects(client: KubeClient, namespace: string, added: Subjects): Promise<void> {
  await change(client, namespace, (binding) => {
    requireDevRole(binding);
    const next = [...(binding?.subjects ?? [])];
    for (const subject of subjectsOf(added)) {
      if (!next.some((one) => isSame(one, subject))) {
        next.push(subject);
      }
    }
    return next;
  });
}

/** Removes the subjects that are present. @throws ApiError when the API server refuses. */
export async function removeSubjects(
  client: KubeClient,
  namespace: string,
  removed: Subjects,
): Promise<void> {
  const gone = subjectsOf(removed);
  await change(client, namespace, (binding) =>
    (binding?.subjects ?? []).filter((one) => !gone.some((subject) => isSame(one, subject))),
  );
}

/** Writes the changed subjects. `next` only adds subjects or only removes them. */
async function change(
  client: KubeClient,
  namespace: string,
  next: (binding: RoleBinding | undefined) => Subject[],
): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    const binding = await bindingIn(client, namespace);
    const subjects = next(binding);
    if (subjects.length === (binding?.subjects ?? []).length) {
      return;
    }
    try {
      await write(client, namespace, { binding, subjects });
      return;
    } catch (error) {
      if (!(isConflict(error) || isAlreadyExists(error)) || attempt === ATTEMPTS) {
        throw error;
      }
    }
  }
}

async function write(
  client: KubeClient,
  namespace: string,
  { binding, subjects }: { binding: RoleBinding | undefined; subjects: Subject[] },
): Promise<void> {
  const ref = { namespace, name: DEV_ROLE };
  if (binding === undefined) {
    // There is no RoleBinding: the operator has not made it yet, or leaves the RoleBindings of this namespace to people.
    const roleRef = { apiGroup: RBAC_GROUP, kind: 'ClusterRole', name: DEV_ROLE };
    await client.create(ROLE_BINDINGS, { metadata: ref, roleRef, subjects });
    return;
  }
  const { resourceVersion } = binding.metadata;
  await client.mergePatch(ROLE_BINDINGS, ref, { metadata: { resourceVersion }, subjects });
}

async function bindingIn(client: KubeClient, namespace: string): Promise<RoleBinding | undefined> {
  return await unlessMissing(client.get(ROLE_BINDINGS, { namespace, name: DEV_ROLE }));
}

/** Refuses a RoleBinding that somebody made for another role, because new members would get that role. */
function requireDevRole(binding: RoleBinding | undefined): void {
  const { kind, name } = binding?.roleRef ?? { kind: 'ClusterRole', name: DEV_ROLE };
  if (kind !== 'ClusterRole' || name !== DEV_ROLE) {
    throw new StatusError(
      409,
      `RoleBinding ${DEV_ROLE} binds ${kind} ${name}. Delete it, and the operator creates it again`,
    );
  }
}

function subjectsOf({ users = [], serviceaccounts = [] }: Subjects): Subject[] {
  return [
    ...users.map((name) => ({ apiGroup: RBAC_GROUP, kind: 'User', name })),
    ...serviceaccounts.map(({ name, namespace }) => ({ kind: 'ServiceAccount', name, namespace })),
  ];
}

function isSame(one: Subject, other: Subject): boolean {
  return one.kind === other.kind && one.name === other.name && one.namespace === other.namespace;
}
