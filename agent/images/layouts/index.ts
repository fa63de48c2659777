/** The layouts of published disks that this agent can read. The first layout that recognises a manifest plans the pull of this manifest. */
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { planArtifact } from './artifact.ts';
import { planContainerDisk } from './containerdisk.ts';
import type { PlanPull, PullPlan } from './pull.ts';
import { printable } from '../oci/manifests.ts';
import { planTart } from './tart.ts';

/**
 * Layouts in the order in which they are tried. The layout of container images comes last. It allows any content in layers, so it could
 * also accept images that have one of the other layouts.
 */
const LAYOUTS: readonly PlanPull[] = [planArtifact, planTart, planContainerDisk];
/** The message about an unknown manifest shows at most this number of characters of the manifest's media types. */
const TYPES_LENGTH = 500;

/**
 * Returns the plan of the first layout that recognises the manifest.
 *
 * @throws ReasonedError `ImageInvalid` when no layout recognises the manifest. The message contains the media types found.
 */
export async function planPull(
  ...[repository, resolved, signal, parts]: Parameters<PlanPull>
): Promise<PullPlan> {
  for (const plan of LAYOUTS) {
    const found = await plan(repository, resolved, signal, parts);
    if (found !== undefined) {
      return found;
    }
  }
  const { artifactType, config, layers } = resolved.manifest;
  const types = new Set(
    [artifactType ?? [], config.mediaType, layers.map(({ mediaType }) => mediaType)].flat(),
  );
  const shown = printable([...types].join(', '), TYPES_LENGTH);
  throw new ReasonedError(
    'ImageInvalid',
    `${repository.name} is neither a container image with /disk, nor an image of Tart or Berth. Its media types are ${shown}`,
  );
}
