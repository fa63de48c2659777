/**
 * Creates and corrects one RoleBinding for each role of Berth in every served namespace, no matter who created the namespace. Each
 * RoleBinding has the configured groups. The operator does not remove subjects that people added.
 *
 * Also publishes for all users whether there is an image storage, so that clients refuse work that needs one before they write anything.
 */
import type { Logger } from 'pino';
import { undefinedIf } from '../../base/errors.ts';
import {
  ADMIN_ROLE,
  CLUSTER_INFO,
  DEV_ROLE,
  HAS_IMAGE_STORAGE,
  isServedNamespace,
  ROLE_BINDINGS_LABEL,
  ROLE_GROUPS_ANNOTATION,
  UNMANAGED,
} from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { writeData } from '../../kube/configmapdata.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import { type Namespace, ROLE_BINDINGS, type RoleBinding, type Subject } from '../../kube/core.ts';
import { isNamespaceTerminating, unlessMissing } from '../../kube/errors.ts';
import { type Recorder, warning } from '../objects/events.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf, refOf, type Unsaved } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { Writer } from '../objects/writer.ts';
import { parseDocument } from '../../api/v1alpha1/machine.ts';

interface RoleWatches {
  readonly namespaces: Informer<Namespace>;
  /** RoleBindings named `berth-role-dev`, from all namespaces. */
  readonly devBindings: Informer<RoleBinding>;
  /** RoleBindings named `berth-role-admin`, from all namespaces. */
  readonly adminBindings: Informer<RoleBinding>;
}

export interface RoleControllerOptions extends RoleWatches {
  readonly client: KubeClient;
  readonly config: OperatorConfig;
  readonly recorder: Recorder;
  readonly consistency: Consistency;
}

export class RoleReconciler {
  readonly #options: RoleControllerOptions;

  constructor(options: RoleControllerOptions) {
    this.#options = options;
  }

  /** Reconciles one RoleBinding. `key` is `NAMESPACE/NAME`, also for a RoleBinding that does not exist yet. */
  async reconcile(key: string, { logger }: { logger: Logger }): Promise<Result> {
    const { namespaces, config, consistency } = this.#options;
    const { namespace: namespaceName = '', name } = refOf(key);
    const role = BOUND_ROLES.find((one) => one === name);
    const namespace = namespaces.cache.get(namespaceName);
    if (namespace === undefined || role === undefined) {
      consistency.forget(key);
      return undefined;
    }
    if (isManaged(namespace, config)) {
      const informer = bindingsOf(role, this.#options);
      const writer = new Writer({ ...this.#options, type: ROLE_BINDINGS, informer });
      const groups = groupsWith(role, namespaceName, config);
      const binding = informer.cache.get(key);
      if (binding === undefined) {
        logger.info({ binding: key, groups }, 'creating the RoleBinding of a role');
        const creation = unlessMissing(writer.create(key, newBinding(role, namespaceName, groups)));
        await undefinedIf(isNamespaceTerminating, creation);
      } else {
        await this.#update(key, { binding, groups, writer, logger });
      }
    }
    return undefined;
  }

  async #update(
    key: string,
    {
      binding,
      groups,
      writer,
      logger,
    }: {
      binding: RoleBinding;
      groups: readonly string[];
      writer: Writer<RoleBinding>;
      logger: Logger;
    },
  ): Promise<void> {
    if (!bindsOwnRole(binding)) {
      // This RoleBinding binds another role, so the operator does not change it. If the operator added groups, the groups would get a role
      // that nobody configured. If the operator deleted the RoleBinding, people would lose rights.
      const message = `RoleBinding ${binding.metadata.name} binds ${binding.roleRef.kind} ${binding.roleRef.name}. Delete this RoleBinding. The operator then creates a correct one`;
      this.#options.recorder.event(binding, warning('OtherRoleBound', 'Binding', message));
      return;
    }
    const change = bindingChange(binding, groups);
    if (change !== undefined) {
      logger.info({ binding: key, groups }, 'setting the groups of a RoleBinding');
      await writer.patch(key, binding, change);
    }
  }
}

function bindingsOf(role: string, { devBindings, adminBindings }: RoleWatches): Informer<RoleBinding> {
  return role === ADMIN_ROLE ? adminBindings : devBindings;
}

/** Enqueues the RoleBindings of a namespace when the namespace changes, and a RoleBinding when it changes itself. */
export function enqueueBindings(
  controller: Controller,
  { namespaces, devBindings, adminBindings }: RoleWatches,
): void {
  namespaces.cache.onChange(({ object: { metadata } }) => {
    BOUND_ROLES.forEach((name) =>
      controller.enqueue(keyOf({ metadata: { namespace: metadata.name, name } })),
    );
  });
  for (const { cache } of [devBindings, adminBindings]) {
    cache.onChange(({ object }) => controller.enqueue(keyOf(object)));
  }
}

const RBAC_GROUP = 'rbac.authorization.k8s.io';

/** Roles that the operator binds in every served namespace. */
const BOUND_ROLES = [DEV_ROLE, ADMIN_ROLE] as const;
type BoundRole = (typeof BOUND_ROLES)[number];

/** Returns true if the operator creates and corrects the RoleBindings of this namespace. */
export function isManaged({ metadata, status }: Namespace, config: OperatorConfig): boolean {
  const isEnding = metadata.deletionTimestamp !== undefined || status?.phase === 'Terminating';
  const isServed = isServedNamespace(metadata.name, config.namespaces);
  return !isEnding && isServed && metadata.labels?.[ROLE_BINDINGS_LABEL] !== UNMANAGED;
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

interface BindingChange {
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

/** Writes the facts of the configuration that every user may read. */
export class ClusterInfoReconciler {
  readonly #options: { readonly client: KubeClient; readonly config: OperatorConfig };

  constructor(options: { readonly client: KubeClient; readonly config: OperatorConfig }) {
    this.#options = options;
  }

  async reconcile(): Promise<Result> {
    const { client, config } = this.#options;
    const info = { namespace: config.namespaces.system, name: CLUSTER_INFO };
    await writeData(client, info, { [HAS_IMAGE_STORAGE]: String(config.imageStorage !== undefined) });
    return undefined;
  }
}

/** Enqueues the system namespace, in which the facts are, when it changes. The configuration of a process does not change. */
export function enqueueClusterInfo(
  controller: Controller,
  { namespaces, config }: { namespaces: Informer<Namespace>; config: OperatorConfig },
): void {
  namespaces.cache.onChange(({ object: { metadata } }) => {
    if (metadata.name === config.namespaces.system) {
      controller.enqueue(metadata.name);
    }
  });
}
