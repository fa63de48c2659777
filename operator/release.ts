/** Reads the records that Helm keeps of a release, to learn whether Helm is uninstalling it. */
import type { KubeClient } from '../kube/client.ts';
import { CONFIG_MAPS, SECRETS } from '../kube/core.ts';
import type { KubeObject, Resource } from '../kube/objects.ts';

/** Kinds in which Helm can keep its records. Helm uses Secrets unless HELM_DRIVER names another kind. */
const RECORD_KINDS: readonly Resource<KubeObject>[] = [SECRETS, CONFIG_MAPS];
/** Status that Helm stores before it creates the objects of the hook. */
const UNINSTALLING = 'uninstalling';

/**
 * Returns the reason why Helm is not uninstalling this release at present, as a message for people. The result is undefined if Helm is
 * uninstalling it. Only the newest record counts: the record of an uninstallation that failed keeps its status after a rollback.
 */
export async function whyNotUninstalling(
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
