import { describe, expect, it } from 'vitest';
import { ADMIN_ROLE, DEV_ROLE, ROLE_BINDINGS_LABEL } from '../../api/v1alpha1/names.ts';
import type { Namespace, RoleBinding, Subject } from '../../kube/core.ts';
import { parseConfig } from '../config/config.ts';
import { bindingChange, bindsOwnRole, groupsWith, isManaged, newBinding } from './controller.ts';

const ROLES = { defaultDev: ['oidc:all', 'oidc:devs'], dev: ['oidc:devs'], admin: ['oidc:admins'] };
const config = parseConfig({ roles: ROLES, namespaces: { system: 'platform-system' } }, 'test');
const ANN: Subject = { apiGroup: 'rbac.authorization.k8s.io', kind: 'User', name: 'ann@example.com' };
const CI: Subject = { kind: 'ServiceAccount', name: 'ci', namespace: 'platform-ci' };

function group(name: string): Subject {
  return { apiGroup: 'rbac.authorization.k8s.io', kind: 'Group', name };
}

/** Returns the stored RoleBinding of the role dev, after the operator created it with `groups`. */
function stored(groups: readonly string[]): RoleBinding {
  const { metadata, roleRef, subjects = [] } = newBinding(DEV_ROLE, 'platform-ci', groups);
  return {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'RoleBinding',
    metadata: { ...metadata, name: DEV_ROLE },
    roleRef,
    subjects,
  };
}

/** Returns the RoleBinding after the operator's change for `groups`. */
function changed(binding: RoleBinding, groups: readonly string[]): RoleBinding {
  const change = bindingChange(binding, groups);
  const { annotations } = binding.metadata;
  return change === undefined
    ? binding
    : {
        ...binding,
        metadata: { ...binding.metadata, annotations: { ...annotations, ...change.metadata.annotations } },
        subjects: [...change.subjects],
      };
}

describe('the RoleBindings of a namespace', () => {
  const namespace = (name: string, parts: object = {}): Namespace => ({
    apiVersion: 'v1',
    kind: 'Namespace',
    metadata: { name, ...parts },
  });

  it.each([
    ['of the default namespace', namespace('platform-default'), true],
    ['of a namespace with the prefix', namespace('platform-ci'), true],
    ['of another namespace', namespace('kube-system'), false],
    ['of the system namespace', namespace('platform-system'), false],
    [
      'of a namespace that people manage',
      namespace('platform-ci', { labels: { [ROLE_BINDINGS_LABEL]: 'unmanaged' } }),
      false,
    ],
    [
      'of a namespace that is being deleted',
      namespace('platform-ci', { deletionTimestamp: '2026-01-01T00:00:00Z' }),
      false,
    ],
  ])('%s', (_what, one, expected) => {
    expect(isManaged(one, config)).toBe(expected);
  });

  it('have the configured groups, in the default namespace also those of all users', () => {
    expect(groupsWith(DEV_ROLE, 'platform-ci', config)).toEqual(['oidc:devs']);
    expect(groupsWith(DEV_ROLE, 'platform-default', config)).toEqual(['oidc:devs', 'oidc:all']);
    expect(groupsWith(ADMIN_ROLE, 'platform-default', config)).toEqual(['oidc:admins']);
  });
});

describe('the groups of a RoleBinding', () => {
  it('are written once', () => {
    expect(bindingChange(stored(['oidc:devs']), ['oidc:devs'])).toBeUndefined();
    expect(bindingChange(stored([]), [])).toBeUndefined();
  });

  it('change with the configuration, and subjects of people stay', () => {
    const binding = stored(['oidc:old', 'oidc:devs']);
    binding.subjects?.unshift(ANN, group('oidc:guests'));
    binding.subjects?.push(CI);
    const next = changed(binding, ['oidc:devs', 'oidc:new']);
    expect(next.subjects).toEqual([ANN, group('oidc:guests'), group('oidc:devs'), CI, group('oidc:new')]);
    expect(bindingChange(next, ['oidc:devs', 'oidc:new'])).toBeUndefined();
    expect(changed(next, []).subjects).toEqual([ANN, group('oidc:guests'), CI]);
  });

  it('come back when somebody removes them', () => {
    const emptied: RoleBinding = { ...stored(['oidc:devs']) };
    delete emptied.subjects;
    expect(changed(emptied, ['oidc:devs']).subjects).toEqual([group('oidc:devs')]);
  });

  it('stay with the person who added them before the configuration did', () => {
    const binding = changed(stored([]), []);
    binding.subjects = [group('oidc:devs')];
    const configured = changed(binding, ['oidc:devs']);
    expect(configured.subjects).toEqual([group('oidc:devs')]);
    expect(changed(configured, []).subjects).toEqual([group('oidc:devs')]);
  });

  it('do not include a user or account that has the name of a group', () => {
    const binding = stored(['ci']);
    const user: Subject = { ...ANN, name: 'ci' };
    binding.subjects?.push(CI, user);
    expect(changed(binding, []).subjects).toEqual([CI, user]);
  });

  it.each(['', '{', '{}', '[1, null, {"a": 1}]', '"oidc:devs"'])(
    'stay, and are not doubled, with the unreadable annotation %j',
    (text) => {
      const binding = stored(['oidc:devs']);
      binding.metadata.annotations = { 'berth.dev/role-groups': text };
      expect(changed(binding, ['oidc:devs']).subjects).toEqual([group('oidc:devs')]);
    },
  );
});

it('a RoleBinding binds its own role only as a ClusterRole of that name', () => {
  const { roleRef, ...binding } = stored([]);
  expect(bindsOwnRole({ ...binding, roleRef })).toBe(true);
  expect(bindsOwnRole({ ...binding, roleRef: { ...roleRef, name: 'cluster-admin' } })).toBe(false);
  expect(bindsOwnRole({ ...binding, roleRef: { ...roleRef, kind: 'Role' } })).toBe(false);
});
