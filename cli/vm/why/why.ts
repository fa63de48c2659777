/** Says on one page why a VM is not running. It reads only objects that the user may read. */
import { isObjectName } from '../../../api/v1alpha1/names.ts';
import { isImageReference } from '../../../api/v1alpha1/reference.ts';
import type { VM } from '../../../api/v1alpha1/vm.ts';
import { undefinedIf } from '../../../base/errors.ts';
import { type Event, NODES, PODS } from '../../../kube/core.ts';
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
import { eventsNamed, ownEvents } from './events.ts';
import { pageOf, pageOfGone, type Shown, shownEvent } from './page.ts';

/** Number of Events on the page. More Events would not fit on one page. */
const EVENTS_SHOWN = 8;

/** Writes the page about the VM. @throws CommandError when the VM does not exist; ApiError. */
export async function why(terminal: Terminal, globals: Globals, name: string): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const vm = await existing(cluster, name, signal);
    const [seen, named] = await Promise.all([
      seenOf(cluster, vm, signal),
      eventsNamed(cluster, name, signal),
    ]);
    const diagnosis = diagnose(seen);
    const events = lastOf(ownEvents(named, vm));
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
    const events = lastOf(await eventsNamed(cluster, name, signal));
    throw events.length === 0
      ? error
      : new CommandError(pageOfGone({ name, ...cluster }, events), EXIT.notFound);
  }
}

/** Returns the last Events as the page shows them. `events` begins with the newest. */
function lastOf(events: readonly Event[]): Shown[] {
  return events.slice(0, EVENTS_SHOWN).map(shownEvent);
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

async function ifReadable<T>(asked: Promise<T>): Promise<T | undefined> {
  return await undefinedIf((error) => isForbidden(error) || isNotFound(error), asked);
}
