/** Reasons of the RoleBindings that the operator manages in served namespaces. */
export const ROLE_REASONS = {
  OtherRoleBound: {
    seen: { RoleBinding: ['Event'] },
    class: 'mendable',
    by: 'operator',
    says: 'The RoleBinding does not bind the role that has its name, so the operator does not change the RoleBinding',
    todo: 'Delete the RoleBinding. The operator creates it again',
  },
} as const;
