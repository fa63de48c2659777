/** Finds the credentials of a namespace for the registries that a Pod uses. */
import { INSECURE_SERVERS_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { readReference } from '../../api/v1alpha1/reference.ts';
import {
  insecureServersText,
  readRegistryCredentials,
  REGISTRIES_CONFIG_MAP,
  type RegistryCredential,
  type RegistryCredentials,
} from '../../api/v1alpha1/registrycredentials.ts';
import type { KubeClient } from '../../kube/client.ts';
import { CONFIG_MAPS } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import { type OperatorEvent, warning } from './events.ts';

/**
 * Reads the credentials of a namespace from the API server with one GET. The credentials are not in a cache, because only a new Pod needs
 * them, and a new Pod needs the latest version.
 *
 * @throws ApiError when the request fails
 */
export async function readCredentials(client: KubeClient, namespace: string): Promise<RegistryCredentials> {
  const found = await unlessMissing(client.get(CONFIG_MAPS, { namespace, name: REGISTRIES_CONFIG_MAP }));
  return readRegistryCredentials(found?.data);
}

/** Returns the credentials for the registries that the references name. */
export function credentialsFor(
  references: readonly string[],
  known: readonly RegistryCredential[],
): RegistryCredential[] {
  const registries = references.map((reference) => {
    const read = readReference(reference);
    return typeof read === 'string' ? undefined : read.registry;
  });
  return known.filter(({ registry }) => registries.includes(registry));
}

/**
 * Returns the names of a Pod's pull secrets. The secrets that the VM or Image names come first, because users chose them. The secrets of
 * the given `credentials` follow.
 */
export function pullSecretNames(
  own: readonly string[],
  credentials: readonly RegistryCredential[],
): readonly string[] {
  return [...new Set([...own, ...credentials.map(({ secretName }) => secretName)])];
}

/**
 * Returns the annotation for a Pod that may use some registries without TLS, or without a check of their certificates. The result is empty
 * for other Pods.
 */
export function insecureAnnotation(credentials: readonly RegistryCredential[]): Record<string, string> {
  const insecure = credentials.filter(({ allowInsecure }) => allowInsecure);
  return insecure.length === 0 ? {} : { [INSECURE_SERVERS_ANNOTATION]: insecureServersText(insecure) };
}

/** Returns an Event about registry entries that were ignored when a Pod was created. The result is undefined if none was ignored. */
export function ignoredEntries(mistakes: readonly string[]): OperatorEvent | undefined {
  const [first, ...others] = mistakes;
  const more = others.length === 0 ? '' : `, and ${others.length} more mistakes`;
  return first === undefined
    ? undefined
    : warning('RegistryEntryIgnored', 'Deploying', `ConfigMap ${REGISTRIES_CONFIG_MAP}: ${first}${more}`);
}
