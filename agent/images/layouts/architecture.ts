/** An image for another architecture than the machine's is refused before its disk is fetched: it would never boot. */
import { printable } from '../oci/manifests.ts';
import { ImageError } from '../local/types.ts';

/** How tools for images say that nobody told them the architecture. */
const UNSAID: ReadonlySet<string> = new Set(['', 'unknown']);

/**
 * `said`: the architecture that the image names, as in an OCI configuration; undefined when it names none, which fits every machine.
 * @throws ImageError `ImageArchitectureMismatch` with both architectures.
 */
export function checkArchitecture(
  name: string,
  said: string | undefined,
  wanted: 'amd64' | 'arm64' | undefined,
): void {
  if (wanted === undefined || said === undefined || UNSAID.has(said) || said === wanted) {
    return;
  }
  const found = printable(said);
  throw new ImageError(
    'ImageArchitectureMismatch',
    `${name} is an image for ${found}, and the machine is ${wanted}: use an image for ${wanted}, or set the architecture ${found}`,
  );
}
