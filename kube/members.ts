/**
 * Reads and changes the members of a namespace. Members are the subjects of a RoleBinding that has the name of its ClusterRole. They are
 * users, groups and service accounts.
 */
import { undefinedIf } from '../base/errors.ts';
import { deleteExisting, type KubeClient } from './client.ts';
import { retryChange } from './conflicts.ts';
import { ROLE_BINDINGS, type RoleBinding, SERVICE_ACCOUNTS, type Subject } from './core.ts';
import { ApiError, isAlreadyExists, isConflict, isNotFound, unlessMissing } from './errors.ts';

/** Reference to a RoleBinding, which has the same name as its ClusterRole. */
export interface RoleRef {
  readonly namespace: string;
  readonly name: string;
}

/** Reference to a service account. */
export interface AccountRef {
  readonly namespace: string;
  readonly name: string;
}

/** Subjects to add or to remove. */
export interface Subjects {
  readonly users?: readonly string[] | undefined;
  readonly serviceaccounts?: readonly { readonly name: string; readonly namespace: string }[] | undefined;
}

const RBAC_GROUP = 'rbac.authorization.k8s.io';

/**
 * Returns the subjects of the RoleBinding. If there is no such RoleBinding, the result is empty. @throws ApiError when the API server
 * refuses.
 */
export async function listSubjects(client: KubeClient, role: RoleRef): Promise<readonly Subject[]> {
  return (await bindingOf(client, role))?.subjects ?? [];
}

/**
 * Adds the subjects that are not yet members. @throws ApiError when the API server refuses, or with status 409 when the RoleBinding is for
 * another role.
 */
export async function addSubjects(client: KubeClient, role: RoleRef, added: Subjects): Promise<void> {
  await change(client, role, (binding) => {
    requireRole(binding, role);
    const next = [...(binding?.subjects ?? [])];
    for (const subject of subjectsOf(added)) {
      if (!next.some((one) => isSame(one, subject))) {
        next.push(subject);
      }
    }
    return next;
  });
}

/** Removes the subjects from the members. Subjects that are not members are ignored. @throws ApiError when the API server refuses. */
export async function removeSubjects(client: KubeClient, role: RoleRef, removed: Subjects): Promise<void> {
  const gone = subjectsOf(removed);
  await change(client, role, (binding) =>
    (binding?.subjects ?? []).filter((one) => !gone.some((subject) => isSame(one, subject))),
  );
}

/**
 * Writes the list of subjects that `next` returns. `next` either only adds subjects or only removes subjects. Therefore an unchanged number
 * of subjects means an unchanged list. An unchanged list is not written.
 */
async function change(
  client: KubeClient,
  role: RoleRef,
  next: (binding: RoleBinding | undefined) => Subject[],
): Promise<void> {
  const changed = await retryChange(async () => {
    const binding = await bindingOf(client, role);
    const subjects = next(binding);
    return subjects.length === (binding?.subjects ?? []).length
      ? subjects
      : await undefinedIf(isStale, write(client, role, { binding, subjects }));
  });
  if (changed === undefined) {
    const message = `Others are changing RoleBinding ${role.name} in namespace ${role.namespace}. Try again`;
    throw new ApiError(message, { status: 409, reason: 'Conflict' });
  }
}

function isStale(error: unknown): boolean {
  return isConflict(error) || isAlreadyExists(error);
}

/** Returns the subjects that were written. */
async function write(
  client: KubeClient,
  role: RoleRef,
  { binding, subjects }: { binding: RoleBinding | undefined; subjects: Subject[] },
): Promise<Subject[]> {
  if (binding === undefined) {
    // The RoleBinding is missing: the operator has not created it yet, or people manage the RoleBindings of this namespace.
    const roleRef = { apiGroup: RBAC_GROUP, kind: 'ClusterRole', name: role.name };
    await client.create(ROLE_BINDINGS, { metadata: { ...role }, roleRef, subjects });
    return subjects;
  }
  const { resourceVersion } = binding.metadata;
  await client.mergePatch(ROLE_BINDINGS, role, { metadata: { resourceVersion }, subjects });
  return subjects;
}

async function bindingOf(client: KubeClient, role: RoleRef): Promise<RoleBinding | undefined> {
  return await unlessMissing(client.get(ROLE_BINDINGS, role));
}

/** Throws if the RoleBinding is for another role, because new members would get that other role. @throws ApiError with 409 */
function requireRole(binding: RoleBinding | undefined, role: RoleRef): void {
  const { kind, name } = binding?.roleRef ?? { kind: 'ClusterRole', name: role.name };
  if (kind !== 'ClusterRole' || name !== role.name) {
    const message = `RoleBinding ${role.name} binds ${kind} ${name} instead of ClusterRole ${role.name}. Delete this RoleBinding. The operator then creates a correct one`;
    throw new ApiError(message, { status: 409, reason: 'Conflict' });
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

/**
 * Creates the service account and gives it the role. If the second step fails, the service account is deleted, so that the request can be
 * repeated. `client` must complete requests that the user interrupts, because otherwise an account without its role could stay.
 */
export async function createMember(client: KubeClient, ref: AccountRef, role: string): Promise<void> {
  const { metadata } = await client.create(SERVICE_ACCOUNTS, { metadata: { ...ref } });
  try {
    await addSubjects(client, { ...ref, name: role }, { serviceaccounts: [ref] });
  } catch (error) {
    // If the deletion fails too, the caller still gets the first error, because only this error tells why the role is missing.
    await client.delete(SERVICE_ACCOUNTS, ref, { uid: metadata.uid }).catch(() => undefined);
    throw error;
  }
}

/**
 * Deletes the service account, and then removes it from the RoleBinding. If the removal fails, another call of this function still does the
 * removal, although the service account no longer exists. `client` must complete requests that the user interrupts, because otherwise a
 * later account of this name could have the role.
 */
export async function deleteMember(client: KubeClient, ref: AccountRef, role: string): Promise<void> {
  const takeRole = async () =>
    await removeSubjects(client, { ...ref, name: role }, { serviceaccounts: [ref] });
  try {
    await deleteExisting(client, SERVICE_ACCOUNTS, ref);
  } catch (error) {
    if (isNotFound(error)) {
      await takeRole();
    }
    throw error;
  }
  await takeRole();
}
