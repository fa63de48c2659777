/** The layouts of published disks that this agent reads. The first layout that recognises a manifest plans its pull. */
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { planArtifact } from './artifact.ts';
import { planContainerDisk } from './containerdisk.ts';
import { asReasonedError, type PlanPull, type PullPlan } from './pull.ts';
import { planTart } from './tart.ts';

/** Layouts in order of preference. Container images come last because their layers can contain anything. */
const LAYOUTS: readonly PlanPull[] = [planArtifact, planTart, planContainerDisk];
/** Limit of the media types of an unknown manifest that a message names. */
const TYPES_SHOWN = 10;

/**
 * Returns the plan of the first layout that recognises the manifest.
 *
 * @throws ReasonedError `ImageInvalid` with the types found when no layout recognises it.
 */
export async function planPull(...[repository, resolved, signal]: Parameters<PlanPull>): Promise<PullPlan> {
  for (const plan of LAYOUTS) {
    const found = await plan(repository, resolved, signal);
    if (found !== undefined) {
      return withImageErrors(found, repository.name);
    }
  }
  const { artifactType, config, layers } = resolved.manifest;
  const types = [...new Set([artifactType, config.mediaType, ...layers.map(({ mediaType }) => mediaType)])];
  throw new ReasonedError(
    'ImageInvalid',
    `${repository.name} is no image with a disk that is known here (container image with /disk, Tart, Berth); it consists of ${types
      .filter((type) => type !== undefined)
      .slice(0, TYPES_SHOWN)
      .join(', ')}`,
  );
}

function withImageErrors(plan: PullPlan, name: string): PullPlan {
  return {
    ...plan,
    run: async (target, options) => {
      try {
        await plan.run(target, options);
      } catch (error) {
        throw asReasonedError(error, name);
      }
    },
  };
}
