/**
 * Implements `node operator/main.ts uninstall`, which the chart's hook runs before Helm deletes anything of the release. The command refuses
 * unless the records of Helm show that Helm is uninstalling the release, because other tools can run the hook when they install. It also
 * refuses while VMs exist, or deletes them if `--drain` is set. Then it ends the operator and the agents, and removes what they wrote:
 * Nodes, Leases, and finalizers of objects that are kept. If the command fails, it can be repeated safely.
 */
import { parseArgs } from 'node:util';
import type { Logger } from 'pino';
import { DEFAULT_DISPLAY_DPI_MAXIMUM } from '../api/v1alpha1/fields.ts';
import { kinds } from '../api/v1alpha1/kinds.ts';
import {
  ADOPTIONS,
  CLUSTER_INFO,
  GROUP,
  HOST_KEY,
  HOST_RECORDS,
  HOST_VALUE,
  JOB_TIMES,
} from '../api/v1alpha1/names.ts';
import type { KubeClient } from '../kube/client.ts';
import { CONFIG_MAPS, LEASES, NODES, PODS, ROLE_BINDINGS, SECRETS } from '../kube/core.ts';
import { isConflict, unlessMissing } from '../kube/errors.ts';
import { clusterScoped, keyOf, type KubeObject, namespaced, type Resource } from '../kube/objects.ts';
import { undefinedIf } from '../base/errors.ts';
import { pause } from '../base/time.ts';
import { APPROVALS_NAME } from './host/approvals.ts';
import { isReady } from './host/observe.ts';
import { IMAGE_CACHE_ENTRIES, IMAGES, ISOS } from '../api/v1alpha1/resources.ts';

/** Kinds whose objects have machines, or make VMs in the place of deleted ones. */
const MACHINE_KINDS: ReadonlySet<string> = new Set(['VM', 'Emulator', 'VMPool', 'RunnerSet']);
/** Largest number of objects that an error message names. The message states how many more objects there are. */
const NAMES_SHOWN = 10;
/**
 * Time in milliseconds between checks whether deleted objects are gone. A VM is gone after a few seconds at the earliest, because its guest
 * must first shut down.
 */
const LOOK_MILLISECONDS = 1_000;
const OPERATOR = 'berth-operator';
const AGENT = 'berth-agent';
/** Name of the ClusterRoleBinding and the RoleBinding that give the chart's hook its rights. */
const RIGHTS = 'berth-uninstall';
/** Kinds whose objects have finalizers of the operator and remain after the uninstallation. */
const HELD_KINDS: readonly Resource<KubeObject>[] = [IMAGES, ISOS, IMAGE_CACHE_ENTRIES];

const DEPLOYMENTS = namespaced<KubeObject>('apps/v1', 'Deployment', 'deployments');
const DAEMON_SETS = namespaced<KubeObject>('apps/v1', 'DaemonSet', 'daemonsets');
const CLUSTER_ROLE_BINDINGS = clusterScoped<KubeObject>(
  'rbac.authorization.k8s.io/v1',
  'ClusterRoleBinding',
  'clusterrolebindings',
);

export interface UninstallOptions {
  /** Namespace of the operator and the agents. */
  readonly namespace: string;
  /** Name of the release. The Pods of the release have this name as a label. */
  readonly instance: string;
  /** True to delete existing VMs. If it is false, the command refuses to continue while VMs exist. */
  readonly drain: boolean;
  /**
   * True if the CRDs are also removed. In this case, objects of all kinds must be deleted first, because nobody would remove their
   * finalizers later.
   */
  readonly allKinds: boolean;
  readonly timeoutMilliseconds: number;
}

/** Error whose message tells people why Berth was not removed. */
export class RefusedError extends Error {
  override readonly name = 'RefusedError';
}

/**
 * Reads the arguments after `uninstall`.
 * @throws TypeError when an argument is unknown
 */
export function readUninstallOptions(args: readonly string[]): UninstallOptions {
  const { values } = parseArgs({
    args: [...args],
    options: {
      namespace: { type: 'string', default: 'berth-system' },
      instance: { type: 'string', default: 'berth' },
      'timeout-seconds': { type: 'string', default: '240' },
      drain: { type: 'boolean', default: false },
      'all-kinds': { type: 'boolean', default: false },
    },
  });
  return {
    namespace: values.namespace,
    instance: values.instance,
    drain: values.drain,
    allKinds: values['all-kinds'],
    timeoutMilliseconds: Number(values['timeout-seconds']) * 1000,
  };
}

/**
 * Removes the objects that the operator and the agents wrote. Then deletes the rights of the chart's hook.
 * @throws RefusedError when Helm is not uninstalling the release, when objects exist that must not be removed, or when an object still
 * exists after the time limit
 */
export async function uninstall(
  client: KubeClient,
  options: UninstallOptions,
  logger: Logger,
): Promise<void> {
  try {
    await remove(client, options, logger);
  } finally {
    await giveUpRights(client, options, logger);
  }
}

/**
 * Deletes the rights of the hook, even if the uninstallation failed. Helm deletes these rights only after a success, so the right to delete
 * hosts would otherwise remain. The next run of the hook gets new rights. Two bindings give the hook its rights. Each binding includes the
 * right to delete itself.
 */
async function giveUpRights(
  client: KubeClient,
  { namespace }: UninstallOptions,
  logger: Logger,
): Promise<void> {
  try {
    await client.delete(ROLE_BINDINGS, { namespace, name: RIGHTS });
    await client.delete(CLUSTER_ROLE_BINDINGS, { name: RIGHTS });
  } catch (error) {
    // The error is only logged. If it were thrown, it would replace a more important error: the error that states why Berth was not
    // removed.
    logger.warn(
      { err: error },
      `The rights of the hook could not be removed. Delete the ClusterRoleBinding ${RIGHTS} and the RoleBinding ${RIGHTS}`,
    );
  }
}

async function remove(client: KubeClient, options: UninstallOptions, logger: Logger): Promise<void> {
  const reason = await whyNotUninstalling(client, { name: options.instance, namespace: options.namespace });
  if (reason !== undefined) {
    throw new RefusedError(reason);
  }
  const signal = AbortSignal.timeout(options.timeoutMilliseconds);
  const wanted = kinds(DEFAULT_DISPLAY_DPI_MAXIMUM).filter(
    ({ kind }) => options.allKinds || MACHINE_KINDS.has(kind),
  );
  if (options.drain) {
    await drain(client, wanted, signal, logger);
  } else {
    const left = await namesOf(client, wanted);
    if (left.length > 0) {
      throw refusal(left);
    }
  }
  await endPrograms(client, options, signal, logger);
  await removeHosts(client, logger);
  await untilNone(() => releaseKept(client), signal);
  await client.delete(LEASES, { namespace: options.namespace, name: OPERATOR });
  for (const name of [APPROVALS_NAME, HOST_RECORDS, ADOPTIONS, CLUSTER_INFO, JOB_TIMES]) {
    await client.delete(CONFIG_MAPS, { namespace: options.namespace, name });
  }
}

function refusal(left: readonly string[]): RefusedError {
  const more = left.length > NAMES_SHOWN ? ` and ${left.length - NAMES_SHOWN} more` : '';
  return new RefusedError(
    `Berth is not removed while these objects exist: ${left.slice(0, NAMES_SHOWN).join(', ')}${more}. ` +
      'Delete these objects and uninstall again. To keep the release, run: helm rollback RELEASE REVISION. ' +
      'To delete these objects with their disks, run the rollback, upgrade the release with uninstall.drain=true, and uninstall again.',
  );
}

async function namesOf(client: KubeClient, resources: readonly Resource<KubeObject>[]): Promise<string[]> {
  const found: string[] = [];
  for (const one of resources) {
    const objects = await listIfKnown(client, one);
    found.push(...objects.map((object) => `${one.kind} ${keyOf(object)}`));
  }
  return found;
}

/** Lists the objects of a kind. The list is empty if the definition of the kind is already deleted. */
async function listIfKnown(client: KubeClient, one: Resource<KubeObject>): Promise<KubeObject[]> {
  return (await unlessMissing(client.list(one)))?.items ?? [];
}

/** Deletes the machines first, then the objects that these machines were created from. */
async function drain(
  client: KubeClient,
  resources: readonly Resource<KubeObject>[],
  signal: AbortSignal,
  logger: Logger,
): Promise<void> {
  const machines = resources.filter(({ kind }) => MACHINE_KINDS.has(kind));
  for (const group of [machines, resources.filter((one) => !machines.includes(one))]) {
    await untilNone(async () => {
      await deleteAll(client, group, logger);
      return await namesOf(client, group);
    }, signal);
  }
}

/**
 * Deletes all objects of these kinds that are not being deleted yet. The caller repeats this, because programs of users can create objects
 * until the operator ends. An object whose name belongs to a later object by now is deleted by the next call.
 */
async function deleteAll(
  client: KubeClient,
  resources: readonly Resource<KubeObject>[],
  logger: Logger,
): Promise<void> {
  for (const one of resources) {
    for (const { metadata } of await listIfKnown(client, one)) {
      if (metadata.deletionTimestamp === undefined) {
        logger.info({ kind: one.kind, name: metadata.name, namespace: metadata.namespace }, 'deleting');
        await undefinedIf(isConflict, client.delete(one, metadata, { uid: metadata.uid }));
      }
    }
  }
}

/**
 * Ends the operator and the agents. Otherwise the agents would create their Nodes again, and the operator would create its Lease again. The
 * function deletes their Deployment and DaemonSet. Helm accepts that both are already deleted.
 */
async function endPrograms(
  client: KubeClient,
  { namespace, instance }: UninstallOptions,
  signal: AbortSignal,
  logger: Logger,
): Promise<void> {
  await client.delete(DAEMON_SETS, { namespace, name: AGENT }, { propagationPolicy: 'Background' });
  await client.delete(DEPLOYMENTS, { namespace, name: OPERATOR }, { propagationPolicy: 'Background' });
  logger.info('waiting for operator and agents to end');
  const labelSelector = `app.kubernetes.io/instance=${instance},app.kubernetes.io/component in (operator,agent)`;
  await untilNone(async () => {
    const { items } = await client.list(PODS, { namespace, labelSelector });
    const silent = items.length > 0 ? await silentNodes(client) : new Set();
    return items.filter(({ spec }) => !silent.has(spec.nodeName)).map((pod) => `Pod ${keyOf(pod)}`);
  }, signal);
}

/**
 * Returns the names of Nodes that are not Ready. The caller does not wait for the Pods of such a Node, because a Node that is not Ready
 * might never end them.
 */
async function silentNodes(client: KubeClient): Promise<Set<string | undefined>> {
  const { items } = await client.list(NODES);
  return new Set(items.filter((node) => !isReady(node)).map(({ metadata }) => metadata.name));
}

/** Deletes the Nodes of the hosts. The garbage collector removes the Leases that belong to these Nodes. */
async function removeHosts(client: KubeClient, logger: Logger): Promise<void> {
  const { items } = await client.list(NODES, { labelSelector: `${HOST_KEY}=${HOST_VALUE}` });
  for (const node of items) {
    const { metadata } = node;
    await undefinedIf(isConflict, client.delete(NODES, metadata, { uid: metadata.uid }));
    const note = isReady(node)
      ? 'the Node of a host was removed; a running agent creates it again'
      : 'host removed';
    logger.info({ node: metadata.name }, note);
  }
}

/**
 * Removes the operator's finalizers from kept objects. Without an operator, an object with these finalizers could never be deleted. A later
 * operator adds the finalizers again.
 * @returns descriptions of objects that somebody changed in the meantime, and that must be checked again
 */
async function releaseKept(client: KubeClient): Promise<string[]> {
  const changed: string[] = [];
  for (const one of HELD_KINDS) {
    for (const object of await listIfKnown(client, one)) {
      const isReleased = await release(client, one, object);
      changed.push(...(isReleased ? [] : [`finalizers of ${one.kind} ${keyOf(object)}`]));
    }
  }
  return changed;
}

/** Removes Berth's finalizers from an object. Returns false when the object has changed since it was read. */
async function release(client: KubeClient, one: Resource<KubeObject>, object: KubeObject): Promise<boolean> {
  const { uid, resourceVersion, finalizers = [] } = object.metadata;
  const others = finalizers.filter((name) => !name.startsWith(`${GROUP}/`));
  if (others.length === finalizers.length) {
    return true;
  }
  const metadata = { uid, resourceVersion, finalizers: others };
  const write = unlessMissing(client.mergePatch(one, object.metadata, { metadata })).then(() => true);
  return (await undefinedIf(isConflict, write)) === true;
}

/**
 * Waits until `look` returns an empty list.
 * @throws RefusedError with the names of the remaining objects when `signal` aborts before the list is empty
 */
async function untilNone(look: () => Promise<string[]>, signal: AbortSignal): Promise<void> {
  for (let left = await look(); left.length > 0; left = await look()) {
    if (signal.aborted) {
      throw new RefusedError(
        `these objects still exist after the time limit: ${left.slice(0, NAMES_SHOWN).join(', ')}`,
      );
    }
    await pause(LOOK_MILLISECONDS);
  }
}

/** Kinds in which Helm can keep its records. Helm uses Secrets unless HELM_DRIVER names another kind. */
const RECORD_KINDS: readonly Resource<KubeObject>[] = [SECRETS, CONFIG_MAPS];
/** Status that Helm stores before it creates the objects of the hook. */
const UNINSTALLING = 'uninstalling';

/**
 * Returns the reason why Helm is not uninstalling this release at present, as a message for people. The result is undefined if Helm is
 * uninstalling it. Only the newest record counts: the record of an uninstallation that failed keeps its status after a rollback.
 */
async function whyNotUninstalling(
  client: KubeClient,
  { name, namespace }: { name: string; namespace: string },
): Promise<string | undefined> {
  const options = { namespace, labelSelector: `owner=helm,name=${name}`, metadataOnly: true };
  const lists = await Promise.all(RECORD_KINDS.map(async (kind) => await client.list(kind, options)));
  const records = lists.flatMap(({ items }) => items).map(({ metadata }) => metadata.labels ?? {});
  const [newest] = records.toSorted((a, b) => Number(b['version']) - Number(a['version']));
  const status = newest?.['status'];
  if (status === UNINSTALLING) {
    return undefined;
  }
  const found = status === undefined ? 'Helm has no record of' : `the status is ${status} for`;
  return (
    `Nothing was removed, because ${found} release ${name} in namespace ${namespace}. ` +
    `Berth is removed only while Helm uninstalls it: helm uninstall ${name} --namespace ${namespace}`
  );
}
