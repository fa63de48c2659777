/** Saves the disks of VMs as images, commits them, pushes them, and resizes them. Follows the work of the host until its end. */
import {
  type ClusterAccess,
  pushedImage,
  requestCommit,
  requestResize,
  savedImage,
} from '../../actions/disk.ts';
import { isPush, pushItem } from '../../api/http/imageitem.ts';
import type { Push } from '../../api/http/vm.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import { SYSTEM_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { IMAGES } from '../../api/v1alpha1/resources.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import type { Globals } from '../globals.ts';
import { checkImageName, IMAGE_KIND } from '../image.ts';
import { report } from '../objects/kind.ts';
import { createNamed } from '../objects/create.ts';
import { forEachName, getNamed } from '../objects/named.ts';
import { printable } from '../text.ts';
import { type Column, print } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import { VM_KIND } from './kind.ts';
import { conditionOf, notReadyMessage } from '../../api/http/conditions.ts';
import { follow } from '../../kube/follow.ts';
import { timeText } from '../duration.ts';
import { CommandError, EXIT, Interrupted } from '../errors.ts';
import { estimator, progressLine } from '../progress.ts';

export interface WaitFlags {
  readonly wait: boolean;
  /** Time limit in milliseconds. */
  readonly timeout: number;
}

interface Saving extends WaitFlags {
  readonly name: string;
  readonly imageName: string;
  readonly description?: string | undefined;
  /** Whether to save the memory, too. */
  readonly memory?: boolean | undefined;
  /** Name of the snapshot whose disk is saved instead of the present one. */
  readonly snapshot?: string | undefined;
}

/** Makes an Image from the VM's disk. @throws CommandError when the copy fails or is not complete in time; ApiError. */
export async function save(terminal: Terminal, globals: Globals, saving: Saving): Promise<void> {
  const { name, imageName, description, memory, snapshot } = saving;
  checkImageName(imageName);
  await withCluster(terminal, globals, async (cluster) => {
    const vm = await getNamed(cluster, VM_KIND, name, terminal.signal);
    const wanted = { imageName, description, memory, snapshot };
    const made = await savedImage(accessTo(cluster), vm, wanted);
    const image = await createNamed(cluster, IMAGES, made, { signal: terminal.signal });
    await finish(terminal, globals, { cluster, image, work: 'save', waiting: saving });
  });
}

/**
 * Replaces the content of the VM's Image with the VM's disk.
 *
 * @throws CommandError when `requestCommit` refuses the commit; errors of {@link save}.
 */
export async function commit(
  terminal: Terminal,
  globals: Globals,
  { name, description, ...waiting }: Omit<Saving, 'imageName' | 'memory' | 'snapshot'>,
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const vm = await getNamed(cluster, VM_KIND, name, signal);
    const image = await requestCommit(accessTo(cluster), vm, description);
    await finish(terminal, globals, { cluster, image, work: 'commit', waiting });
  });
}

/** Pushes the VM's disk to a registry. @throws errors of {@link save}. */
export async function push(
  terminal: Terminal,
  globals: Globals,
  { name, reference, ...waiting }: WaitFlags & { readonly name: string; readonly reference: string },
): Promise<void> {
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    await getNamed(cluster, VM_KIND, name, terminal.signal);
    const made = await pushedImage(accessTo(cluster), { namespace, name }, reference);
    const image = await createNamed(cluster, IMAGES, made, { signal: terminal.signal });
    await finish(terminal, globals, { cluster, image, work: 'push', waiting });
  });
}

function accessTo({ client }: UserCluster): ClusterAccess {
  return { client, systemNamespace: SYSTEM_NAMESPACE };
}

const PUSH_COLUMNS: readonly Column<Push>[] = [
  { header: 'NAME', value: ({ jobName }) => jobName },
  { header: 'STATUS', value: ({ status }) => status },
  { header: 'PROGRESS', value: ({ progressPercent: percent }) => percent && `${percent} %` },
  { header: 'IMAGE', value: ({ image }) => image },
  { header: 'MESSAGE', value: ({ message }) => message },
];

/** Shows the pushes with these names. Without names, shows all pushes of the namespace. @throws CommandError when there is no such push. */
export async function showPushes(
  terminal: Terminal,
  globals: Globals,
  names: readonly string[],
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace, client } = cluster;
    const { items } = await client.list(IMAGES, { namespace, signal });
    const rows = items.filter(isPush).map(pushItem);
    const { done, rethrow } = await forEachName(names, async (name) => {
      const found = rows.find(({ jobName }) => jobName === name);
      if (found === undefined) {
        const shown = JSON.stringify(printable(name));
        throw new CommandError(`push ${shown} not found in namespace ${namespace}`, EXIT.notFound);
      }
      return found;
    });
    if (names.length === 0 || done.length > 0) {
      await print(terminal, globals.output, {
        rows: names.length === 0 ? rows : done,
        columns: PUSH_COLUMNS,
        itemOf: formatPush,
        none: `There are no pushes in namespace ${namespace}`,
      });
    }
    rethrow();
  });
}

function formatPush(push: Push): Push & { readonly name: string } {
  return { name: push.jobName, ...push };
}

/** Requests a larger disk. `size` is a quantity. @throws CommandError when the disk is already larger than `size`; ApiError. */
export async function resize(
  terminal: Terminal,
  globals: Globals,
  { name, size }: { readonly name: string; readonly size: string },
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const found = await getNamed(cluster, VM_KIND, name, signal);
    const vm = await requestResize(cluster.client, found, size);
    const sentence = () =>
      `Requested a disk of ${size} for vm ${name}. A running VM gets the new size at its next start`;
    await report(terminal, globals, { kind: VM_KIND, objects: [vm], sentence });
  });
}

interface Begun {
  readonly cluster: UserCluster;
  readonly image: Image;
  readonly work: ImageWork;
  readonly waiting: WaitFlags;
}

/** Waits for the end of the work if the user wants to wait. Then writes the result. */
async function finish(terminal: Terminal, globals: Globals, begun: Begun): Promise<void> {
  const { work, waiting } = begun;
  const image = waiting.wait ? await untilDone(terminal, begun) : begun.image;
  const verb = waiting.wait ? 'Successfully finished' : 'Requested';
  if (work !== 'push') {
    const sentence = (name: string) => `${verb} ${work} of image ${name}`;
    await report(terminal, globals, { kind: IMAGE_KIND, objects: [image], sentence });
    return;
  }
  const item = pushItem(image);
  if (globals.output === 'table' || globals.output === 'wide') {
    terminal.out(`${verb} push ${item.jobName} to ${item.image}\n`);
    return;
  }
  await print(terminal, globals.output, { rows: [item], columns: [], itemOf: formatPush });
}

export type ImageWork = 'save' | 'commit' | 'push';

interface Work {
  readonly cluster: UserCluster;
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
      progress.show(formatLine(version, work, estimate));
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

function formatLine(image: Image, work: ImageWork, estimate: ReturnType<typeof estimator>): string {
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
    return new CommandError(`${error.message}. ${goesOn}`, error.exitCode);
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
