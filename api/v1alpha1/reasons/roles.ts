/** Reasons of the RoleBindings that the operator manages in served namespaces. */
export const ROLE_REASONS = {
  OtherRoleBound: {
    seen: { RoleBinding: ['Event'] },
    class: 'mendable',
    by: 'operator',
    says: 'The RoleBinding binds another role than the role of its name, so the operator does not change it',
    todo: 'Delete the RoleBinding. The operator creates it again',
  },
} as const;
