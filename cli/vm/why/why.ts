/** Says on one page why a VM is not running. It reads only objects that the user may read. */
import { isObjectName } from '../../../api/v1alpha1/objectname.ts';
import { isImageReference } from '../../../api/v1alpha1/reference.ts';
import type { VM } from '../../../api/v1alpha1/vm.ts';
import { undefinedIf } from '../../../base/errors.ts';
import { type Event, EVENTS, NODES, PODS } from '../../../kube/core.ts';
import { isForbidden, isNotFound } from '../../../kube/errors.ts';
import { type Cluster, withCluster } from '../../cluster.ts';
import { CommandError, EXIT } from '../../errors.ts';
import type { Globals } from '../../globals.ts';
import { IMAGE_KIND, ISO_KIND } from '../../image/kind.ts';
import { findNamed, getNamed } from '../../objects/named.ts';
import { print } from '../../output.ts';
import type { Terminal } from '../../terminal.ts';
import { VM_KIND } from '../kind.ts';
import { diagnose, type Seen } from './diagnosis.ts';
import { pageOf, pageOfGone, type Shown, shownEvent } from './page.ts';

/** Number of Events on the page. More Events would not fit on one page. */
const EVENTS_SHOWN = 8;

/** Largest number of Events of the namespace that are read. 5,000 Events have about 5 MB. */
const EVENTS_READ = 5_000;

/** Writes the page about the VM. @throws CommandError when the VM does not exist; ApiError. */
export async function why(terminal: Terminal, globals: Globals, name: string): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const vm = await existing(cluster, name, signal);
    const [seen, events] = await Promise.all([seenOf(cluster, vm, signal), eventsOf(cluster, vm, signal)]);
    const diagnosis = diagnose(seen);
    if (globals.output === 'table' || globals.output === 'wide') {
      terminal.out(pageOf(diagnosis, events));
      return;
    }
    const item = { ...diagnosis, lastWords: vm.status?.failure, events };
    await print(terminal, globals.output, { rows: [item], columns: [], itemOf: (row) => row });
  });
}

/**
 * Returns the VM. If the VM no longer exists, the error message contains the last Events of the VM. For example, users can see these Events
 * after a failed deployment, which deletes its VM.
 *
 * @throws CommandError when the VM does not exist; ApiError.
 */
async function existing(cluster: Cluster, name: string, signal: AbortSignal): Promise<VM> {
  try {
    return await getNamed(cluster, VM_KIND, name, signal);
  } catch (error) {
    if (!(error instanceof CommandError) || error.exitCode !== EXIT.notFound || !isObjectName(name)) {
      throw error;
    }
    const events = await eventsNamed(cluster, name, signal);
    throw events.length === 0
      ? error
      : new CommandError(pageOfGone({ name, ...cluster }, events.slice(0, EVENTS_SHOWN)), EXIT.notFound);
  }
}

async function seenOf(cluster: Cluster, vm: VM, signal: AbortSignal): Promise<Seen> {
  const { client, namespace } = cluster;
  const { name } = vm.metadata;
  const [pod, image, nodes] = await Promise.all([
    ifReadable(client.get(PODS, { namespace, name }, { signal })),
    imageOf(cluster, vm, signal),
    ifReadable(client.list(NODES, { signal })),
  ]);
  return { vm, pod, image, nodes: nodes?.items };
}

/**
 * Returns the Image or ISO that the VM names. The result is undefined if the VM names an image of a registry, or takes its image from a VM
 * config.
 */
async function imageOf(
  cluster: Cluster,
  { spec: { image, iso } }: VM,
  signal: AbortSignal,
): Promise<Seen['image']> {
  const name = image ?? iso ?? '';
  if (name === '' || isImageReference(name)) {
    return undefined;
  }
  return await undefinedIf(
    (error) => error instanceof CommandError || isForbidden(error),
    findNamed(cluster, image === undefined ? ISO_KIND : IMAGE_KIND, name, signal),
  );
}

/**
 * Returns the last Events of the VM and its Pod, the newest first. Events before the creation of the VM are left out, because an earlier VM
 * might have had the name.
 */
async function eventsOf(cluster: Cluster, vm: VM, signal: AbortSignal): Promise<Shown[]> {
  const { name, creationTimestamp = '' } = vm.metadata;
  const events = await eventsNamed(cluster, name, signal);
  return events.filter(({ time }) => time >= creationTimestamp).slice(0, EVENTS_SHOWN);
}

/** Returns the Events of VMs and Pods with this name, the newest first. */
async function eventsNamed(
  { client, namespace }: Cluster,
  name: string,
  signal: AbortSignal,
): Promise<Shown[]> {
  // The Events are filtered here, because the API server found no Events with a field selector for `regarding.name`.
  const items = (await ifReadable(firstEvents(client.pages(EVENTS, { namespace, signal })))) ?? [];
  return items
    .filter(({ regarding }) => regarding.name === name && /^(VM|Pod)$/.test(regarding.kind ?? ''))
    .map(shownEvent)
    .sort((a, b) => b.time.localeCompare(a.time));
}

async function firstEvents(pages: AsyncGenerator<{ items: Event[] }>): Promise<Event[]> {
  const events: Event[] = [];
  for await (const { items } of pages) {
    events.push(...items);
    if (events.length >= EVENTS_READ) {
      break;
    }
  }
  return events;
}

async function ifReadable<T>(asked: Promise<T>): Promise<T | undefined> {
  return await undefinedIf((error) => isForbidden(error) || isNotFound(error), asked);
}
