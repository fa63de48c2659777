/** Resolves the credentials with which a host fetches the images of a VM. */
import { credentialsFor, pullSecretNames } from '../tasks/registries.ts';
import type { Lookups } from './observe.ts';
import type { Resolved, ResolvedImage } from './resolve.ts';

/**
 * Returns the pull secrets of a VM with those of its namespace for the registries of its images. `own` are the pull secrets that the VM
 * or its other sources name. The lookup is used only if an image comes from a registry, because it may cost a request.
 */
export function resolveAccess(
  lookups: Lookups,
  images: readonly (ResolvedImage | undefined)[],
  own: Resolved['imagePullSecrets'] = [],
): Pick<Resolved, 'credentials' | 'ignoredEntries' | 'imagePullSecrets'> {
  const sources = images.map((image) => image?.source);
  const references = sources.flatMap((source) => (source?.type === 'registry' ? [source.reference] : []));
  const known = references.length === 0 ? undefined : lookups.credentials();
  const credentials = credentialsFor(references, known?.credentials ?? []);
  // A mistake matters only if no other entry serves the VM.
  const ignoredEntries = credentials.length === 0 ? (known?.mistakes ?? []) : [];
  const names = pullSecretNames(
    own.map(({ name }) => name),
    credentials,
  );
  return { credentials, ignoredEntries, imagePullSecrets: names.map((name) => ({ name })) };
}
