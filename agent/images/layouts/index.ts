/** Every published layout of a disk that this agent reads. */
import { codeOf, isDiskFull } from '../../../base/errors.ts';
import { ImageError } from '../local/types.ts';
import { planArtifact } from './artifact.ts';
import { planContainerDisk } from './containerdisk.ts';
import type { PlanPull, PullPlan } from './pull.ts';
import { planTart } from './tart.ts';

/** A container image last: its layers can be anything. */
const LAYOUTS: readonly PlanPull[] = [planArtifact, planTart, planContainerDisk];
/** Of a stranger's manifest, for a message. */
const TYPES_SHOWN = 10;

/** How to pull the disk of this manifest. @throws ImageError `ImageInvalid` when it is of none of the layouts, with the types found. */
export async function planPull(...[repository, resolved, signal]: Parameters<PlanPull>): Promise<PullPlan> {
  for (const plan of LAYOUTS) {
    const found = await plan(repository, resolved, signal);
    if (found !== undefined) {
      return withDiskFull(found);
    }
  }
  const { artifactType, config, layers } = resolved.manifest;
  const types = [...new Set([artifactType, config.mediaType, ...layers.map(({ mediaType }) => mediaType)])];
  throw new ImageError(
    'ImageInvalid',
    `${repository.name} is no image with a disk that is known here (container image with /disk, Tart, Berth); it consists of ${types
      .filter((type) => type !== undefined)
      .slice(0, TYPES_SHOWN)
      .join(', ')}`,
  );
}

function withDiskFull(plan: PullPlan): PullPlan {
  return {
    ...plan,
    run: async (target, options) => {
      try {
        await plan.run(target, options);
      } catch (error) {
        throw asDiskFull(error);
      }
    },
  };
}

function asDiskFull(error: unknown): unknown {
  if (!isDiskFull(error) && codeOf(error) !== 'EFBIG') {
    return error;
  }
  return new ImageError('DiskFull', 'there is no room for the image on this host', { cause: error });
}
