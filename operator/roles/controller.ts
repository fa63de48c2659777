/**
 * Creates and corrects one RoleBinding for each role of Berth in every served namespace, no matter who created the namespace. Each
 * RoleBinding has the configured groups. The operator does not remove subjects that people added.
 */
import type { Logger } from 'pino';
import { undefinedIf } from '../../base/errors.ts';
import { ADMIN_ROLE } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import { type Namespace, ROLE_BINDINGS, type RoleBinding } from '../../kube/core.ts';
import { isNamespaceTerminating, unlessMissing } from '../../kube/errors.ts';
import { type Recorder, warning } from '../objects/events.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf, refOf } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { Writer } from '../objects/writer.ts';
import { bindingChange, bindsOwnRole, BOUND_ROLES, groupsWith, isManaged, newBinding } from './plan.ts';

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
