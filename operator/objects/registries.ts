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
import { type MachineImageSource, registryReference } from '../../api/v1alpha1/source.ts';

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

/** Credentials with which a host fetches the images of a VM. */
export interface ImageAccess {
  readonly imagePullSecrets: readonly { name: string }[];
  /** Credentials of the VM's namespace for the registries of its images. Their Secrets are among `imagePullSecrets`. */
  readonly credentials: readonly RegistryCredential[];
  /** Messages about registry entries with mistakes. They are present only if the namespace has no credential for the images. */
  readonly ignoredEntries: readonly string[];
}

/**
 * Returns the credentials with which a host fetches the images of a VM. `own` contains the pull secrets from the VM's settings. The
 * function adds the credentials of the VM's namespace for the registries of the images. It looks up these credentials only for an image
 * from a registry, because a lookup can cost a request.
 */
export function resolveAccess(
  lookups: { credentials(): RegistryCredentials | undefined },
  images: readonly ({ readonly source: MachineImageSource } | undefined)[],
  own: ImageAccess['imagePullSecrets'] = [],
): ImageAccess {
  const references = images.flatMap((image) => registryReference(image?.source) ?? []);
  const known = references.length === 0 ? undefined : lookups.credentials();
  const credentials = credentialsFor(references, known?.credentials ?? []);
  // Mistakes in entries are reported only if the VM gets no credential at all.
  const ignoredEntries = credentials.length === 0 ? (known?.mistakes ?? []) : [];
  const names = pullSecretNames(
    own.map(({ name }) => name),
    credentials,
  );
  return { credentials, ignoredEntries, imagePullSecrets: names.map((name) => ({ name })) };
}
