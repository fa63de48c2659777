/** Tells which hosts a namespace has, for the placement of its VMs, for its image cache, for the HTTP API and for the `berth` command. */
import { DEDICATED_KEY, DEDICATION_LABEL, TAG_LABEL_PREFIX } from './names.ts';

/** A Node or Namespace, with the only fields that the functions of this file read. */
export interface Labelled {
  readonly metadata: { readonly name: string; readonly labels?: Readonly<Record<string, string>> };
}

/** Returns the namespace that the host is dedicated to. The result is undefined for a shared host. */
export function dedicatedTo({ metadata }: Labelled): string | undefined {
  return metadata.labels?.[DEDICATED_KEY];
}

/**
 * Returns whether the VMs of the namespace run on its own hosts only. The label {@link DEDICATION_LABEL} of the Namespace decides. Without
 * the label, they do if the namespace has hosts of its own. `hosts` are the Nodes of all hosts of the cluster.
 */
export function isDedicated(namespace: Labelled, hosts: readonly Labelled[]): boolean {
  const { name, labels } = namespace.metadata;
  const chosen = labels?.[DEDICATION_LABEL];
  return chosen === 'Strict' || (chosen !== 'Shared' && hosts.some((host) => dedicatedTo(host) === name));
}

/**
 * Returns the hosts of the namespace: those that its VMs can run on. These are its own hosts and, unless {@link isDedicated} is true, the
 * shared hosts. They are in the order of their names. `hosts` are the Nodes of all hosts of the cluster.
 */
export function hostsOf<Host extends Labelled>(namespace: Labelled, hosts: readonly Host[]): Host[] {
  const isStrict = isDedicated(namespace, hosts);
  return hosts
    .filter((host) => {
      const owner = dedicatedTo(host);
      return owner === undefined ? !isStrict : owner === namespace.metadata.name;
    })
    .toSorted((one, other) => (one.metadata.name < other.metadata.name ? -1 : 1));
}

/** Returns the namespace whose administrators change the host. A host that is shared by all namespaces belongs to the default namespace. */
export function ownerOfHost(host: Labelled, defaultNamespace: string): string {
  return dedicatedTo(host) ?? defaultNamespace;
}

/** Returns the names of the tags of a host, in alphabetical order. */
export function tagsOf({ metadata: { labels = {} } }: Labelled): string[] {
  return Object.keys(labels)
    .filter((label) => label.startsWith(TAG_LABEL_PREFIX))
    .map((label) => label.slice(TAG_LABEL_PREFIX.length))
    .toSorted();
}
