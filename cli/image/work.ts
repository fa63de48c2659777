/** Follows the work of a host on an image: a save, a commit or a push. */
import { conditionOf, notReadyMessage } from '../../api/http/conditions.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import { IMAGES } from '../../api/v1alpha1/resources.ts';
import { follow } from '../../kube/follow.ts';
import type { Cluster } from '../cluster.ts';
import { timeText } from '../duration.ts';
import { CommandError, EXIT, Interrupted } from '../errors.ts';
import { progressLine } from '../progress.ts';
import { estimator } from '../remaining.ts';
import type { Terminal } from '../terminal.ts';

export type ImageWork = 'save' | 'commit' | 'push';

interface Work {
  readonly cluster: Cluster;
  /** Version of the Image after the request for the work. Its spec contains this request. */
  readonly image: Image;
  readonly work: ImageWork;
  /** `timeout` is the time limit in milliseconds. */
  readonly waiting: { readonly timeout: number };
}

/** Returns the Image after the end of the work. @throws CommandError when the work fails, or is not complete in time; ApiError. */
export async function untilDone(terminal: Terminal, { cluster, image, work, waiting }: Work): Promise<Image> {
  const { client, watches } = cluster;
  const { metadata: from } = image;
  const late = AbortSignal.timeout(waiting.timeout);
  const signal = AbortSignal.any([terminal.signal, late]);
  const progress = progressLine(terminal);
  const estimate = estimator();
  const wanted = wantedIn(image, work);
  let latest = image;
  try {
    for await (const version of follow<Image>({ client, watches, type: IMAGES, from, signal })) {
      latest = version;
      const result = resultOf(version, wanted);
      if (result === 'done') {
        return version;
      }
      if (result !== 'waiting') {
        throw new CommandError(`The ${work} of image ${from.name} failed: ${result.failure}`);
      }
      progress.show(lineOf(version, work, estimate));
    }
    throw new CommandError(`Image ${from.name} was deleted before the end of the ${work}`);
  } catch (error) {
    const command = `${terminal.name} image get ${from.name}`;
    throw ended(error, { latest, work, command, limit: late.aborted ? waiting.timeout : undefined });
  } finally {
    progress.end();
  }
}

type Result = 'done' | 'waiting' | { readonly failure: string };

interface Wanted {
  readonly work: ImageWork;
  /** `requestedAt` of the commit or push. It is undefined for a save, because a save has no `requestedAt` in the spec. */
  readonly requestedAt: string | undefined;
}

function wantedIn({ spec }: Image, work: ImageWork): Wanted {
  return { work, requestedAt: work === 'save' ? undefined : spec[work]?.requestedAt };
}

/** Returns the result of the wanted work. */
export function resultOf(image: Image, { work, requestedAt }: Wanted): Result {
  const stalled = conditionOf(image, 'Stalled');
  if (stalled?.status === 'True') {
    return { failure: stalled.message || stalled.reason };
  }
  const result = work === 'save' ? resultOfSave(image) : resultOfAction(image, work, requestedAt);
  // Each save or push makes a new Image. If this Image has a `finishedTime` but no result, the disk of the VM is lost, so the save or push
  // has failed. A commit changes an existing Image, whose `finishedTime` can be older than the commit.
  return result === 'waiting' && work !== 'commit' && image.status?.finishedTime !== undefined
    ? { failure: notReadyMessage(image) ?? 'the Image is finished without a result' }
    : result;
}

function resultOfSave(image: Image): Result {
  return conditionOf(image, 'Ready')?.status === 'True' ? 'done' : 'waiting';
}

/**
 * Returns the result of the commit or push that was requested at `wanted`. If the spec now contains a different request, the result is a
 * failure, because the status might never show the result of the wanted request.
 */
function resultOfAction(
  { spec, status = {} }: Image,
  work: 'commit' | 'push',
  wanted: string | undefined,
): Result {
  const last = work === 'commit' ? status.lastCommit : status.lastPush;
  if (last?.result === undefined || last.requestedAt !== wanted) {
    const present = spec[work]?.requestedAt;
    return present === wanted ? 'waiting' : { failure: replacedBy(present, { work, requestedAt: wanted }) };
  }
  return last.result === 'Succeeded' ? 'done' : { failure: last.message || last.result };
}

function replacedBy(present = 'absent', { work, requestedAt = 'absent' }: Wanted): string {
  return `another request replaced it (spec.${work}.requestedAt is now ${present}, not ${requestedAt}), so its result is unknown`;
}

function lineOf(image: Image, work: ImageWork, estimate: ReturnType<typeof estimator>): string {
  const { phase = 'Pending', progressPercent: percent } = image.status ?? {};
  const state = percent === undefined ? (notReadyMessage(image) ?? phase) : estimate(percent, `${percent} %`);
  return `${work} of image ${image.metadata.name}: ${state}`;
}

/**
 * Returns the error for the user. `limit` is the time limit in milliseconds if the wait ended at this limit. Otherwise `limit` is
 * undefined. The work continues after the command has ended, and the message says so.
 */
function ended(
  error: unknown,
  {
    latest,
    work,
    command,
    limit,
  }: { latest: Image; work: ImageWork; command: string; limit: number | undefined },
): unknown {
  const { name } = latest.metadata;
  const goesOn = `The ${work} of image ${name} continues. To see the progress, run: ${command}`;
  if (error instanceof Interrupted) {
    return new CommandError(`${error.message}. ${goesOn}`, EXIT.interrupted);
  }
  if (limit === undefined) {
    return error;
  }
  const waitsFor = notReadyMessage(latest);
  return new CommandError(
    `The ${work} of image ${name} did not end within ${timeText(limit)}${waitsFor === undefined ? '' : `: ${waitsFor}`}. ${goesOn}`,
    EXIT.noAnswer,
  );
}
