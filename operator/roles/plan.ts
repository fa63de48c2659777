/** Decides how a RoleBinding of a served namespace has to change. All functions are pure. */
import {
  ADMIN_ROLE,
  DEV_ROLE,
  ROLE_BINDINGS_LABEL,
  ROLE_GROUPS_ANNOTATION,
  UNMANAGED,
} from '../../api/v1alpha1/names.ts';
import type { Namespace, RoleBinding, Subject } from '../../kube/core.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { isServed, type OperatorConfig } from '../config/config.ts';
import { parseDocument } from '../../api/v1alpha1/machine.ts';

const RBAC_GROUP = 'rbac.authorization.k8s.io';

/** Roles that the operator binds in every served namespace. */
export const BOUND_ROLES = [DEV_ROLE, ADMIN_ROLE] as const;
export type BoundRole = (typeof BOUND_ROLES)[number];

/** Returns true if the operator creates and corrects the RoleBindings of this namespace. */
export function isManaged({ metadata, status }: Namespace, config: OperatorConfig): boolean {
  const isEnding = metadata.deletionTimestamp !== undefined || status?.phase === 'Terminating';
  return !isEnding && isServed(metadata.name, config) && metadata.labels?.[ROLE_BINDINGS_LABEL] !== UNMANAGED;
}

/** Returns the configured groups whose members must have the role in the namespace, without duplicates. */
export function groupsWith(role: BoundRole, namespace: string, config: OperatorConfig): string[] {
  const { roles, namespaces } = config;
  if (role === ADMIN_ROLE) {
    return [...new Set(roles.admin)];
  }
  const more = namespace === namespaces.default ? roles.defaultDev : [];
  return [...new Set([...roles.dev, ...more])];
}

/** Returns true if the RoleBinding binds the ClusterRole that has the same name as the RoleBinding. */
export function bindsOwnRole({ metadata, roleRef }: RoleBinding): boolean {
  return roleRef.apiGroup === RBAC_GROUP && roleRef.kind === 'ClusterRole' && roleRef.name === metadata.name;
}

export function newBinding(
  role: BoundRole,
  namespace: string,
  groups: readonly string[],
): Unsaved<RoleBinding> {
  return {
    metadata: { name: role, namespace, annotations: { [ROLE_GROUPS_ANNOTATION]: JSON.stringify(groups) } },
    roleRef: { apiGroup: RBAC_GROUP, kind: 'ClusterRole', name: role },
    subjects: groups.map(groupSubject),
  };
}

export interface BindingChange {
  readonly metadata: { readonly annotations: Readonly<Record<string, string>> };
  readonly subjects: readonly Subject[];
}

/**
 * Returns a merge patch that adds the missing `groups` to the RoleBinding. The patch also removes groups that the operator added earlier
 * and that are no longer configured. All other subjects stay. The result is undefined when nothing has to change.
 */
export function bindingChange(binding: RoleBinding, groups: readonly string[]): BindingChange | undefined {
  const added = groupsAdded(binding);
  const stale = new Set(added.filter((name) => !groups.includes(name)));
  const subjects = binding.subjects ?? [];
  const kept = subjects.filter((subject) => !isGroup(subject) || !stale.has(subject.name));
  const present = new Set(kept.filter(isGroup).map(({ name }) => name));
  const missing = groups.filter((name) => !present.has(name));
  // `own` contains only the groups that the operator added to the RoleBinding. A group that a person added first is not in `own`. So the
  // operator never removes this group, even if somebody later removes it from the configuration.
  const own = groups.filter((name) => missing.includes(name) || added.includes(name));
  const recorded = JSON.stringify(own);
  const isSame = kept.length === subjects.length && missing.length === 0;
  if (isSame && (binding.metadata.annotations?.[ROLE_GROUPS_ANNOTATION] ?? '[]') === recorded) {
    return undefined;
  }
  return {
    metadata: { annotations: { [ROLE_GROUPS_ANNOTATION]: recorded } },
    subjects: [...kept, ...missing.map(groupSubject)],
  };
}

/**
 * Returns the groups that the operator added. An annotation of the RoleBinding contains their names. The annotation can contain any text,
 * because everybody who is allowed to write the RoleBinding can also write its annotation.
 */
function groupsAdded({ metadata }: RoleBinding): string[] {
  const value = parseDocument(metadata.annotations?.[ROLE_GROUPS_ANNOTATION]);
  return Array.isArray(value) ? value.filter((name) => typeof name === 'string') : [];
}

function isGroup({ kind }: Subject): boolean {
  return kind === 'Group';
}

function groupSubject(name: string): Subject {
  return { apiGroup: RBAC_GROUP, kind: 'Group', name };
}
