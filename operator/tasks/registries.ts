/** Finds the credentials of a namespace for the registries that a Pod uses. */
import { INSECURE_SERVERS_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { readReference } from '../../api/v1alpha1/reference.ts';
import {
  insecureServersText,
  readRegistryCredentials,
  REGISTRIES_CONFIG_MAP,
  type RegistryCredential,
} from '../../api/v1alpha1/registrycredentials.ts';
import type { KubeClient } from '../../kube/client.ts';
import { CONFIG_MAPS } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';

/**
 * Reads the credentials of a namespace from the API server: one GET. They are not watched, because only a new Pod needs them, and it
 * needs the latest.
 *
 * @throws ApiError when the request fails
 */
export async function readCredentials(
  client: KubeClient,
  namespace: string,
): Promise<readonly RegistryCredential[]> {
  const found = await unlessMissing(client.get(CONFIG_MAPS, { namespace, name: REGISTRIES_CONFIG_MAP }));
  return readRegistryCredentials(found?.data).credentials;
}

/** Returns those of the credentials whose registries the references name. */
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

/** Returns the names of a Pod's pull secrets: those of its object first, because users chose them, then those of the namespace. */
export function pullSecretNames(
  own: readonly string[],
  credentials: readonly RegistryCredential[],
): readonly string[] {
  return [...new Set([...own, ...credentials.map(({ secretName }) => secretName)])];
}

/** Returns the annotation of a Pod that may reach some servers insecurely; nothing for other Pods. */
export function insecureAnnotation(credentials: readonly RegistryCredential[]): Record<string, string> {
  const insecure = credentials.filter(({ allowInsecure }) => allowInsecure);
  return insecure.length === 0 ? {} : { [INSECURE_SERVERS_ANNOTATION]: insecureServersText(insecure) };
}
