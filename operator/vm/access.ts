/** Resolves the credentials with which a host fetches the images of a VM. */
import { credentialsFor, pullSecretNames } from '../objects/registries.ts';
import type { MachineImageSource } from '../../api/v1alpha1/machine.ts';
import type { RegistryCredential } from '../../api/v1alpha1/registrycredentials.ts';
import type { Lookups } from './observe.ts';

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
  lookups: Lookups,
  images: readonly ({ readonly source: MachineImageSource } | undefined)[],
  own: ImageAccess['imagePullSecrets'] = [],
): ImageAccess {
  const sources = images.map((image) => image?.source);
  const references = sources.flatMap((source) => (source?.type === 'registry' ? [source.reference] : []));
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
