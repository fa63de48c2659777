/** Every published layout of a disk that this agent reads: the first one that knows a manifest plans its pull. */
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { planArtifact } from './artifact.ts';
import { planContainerDisk } from './containerdisk.ts';
import { asReasonedError, type PlanPull, type PullPlan } from './pull.ts';
import { planTart } from './tart.ts';

/** The container image comes last: its layers can be anything. */
const LAYOUTS: readonly PlanPull[] = [planArtifact, planTart, planContainerDisk];
/** How many types of a stranger's manifest a message names. */
const TYPES_SHOWN = 10;

/** How to pull the disk of this manifest. @throws ReasonedError `ImageInvalid` when it is of none of the layouts, with the types found. */
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
