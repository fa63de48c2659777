/** Says on one page why a VM is not running. It reads only objects that the user may read. */
import { isObjectName } from '../../api/v1alpha1/names.ts';
import { isImageReference } from '../../api/v1alpha1/reference.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { undefinedIf } from '../../base/errors.ts';
import { type Event, EVENTS, NODES, PODS } from '../../kube/core.ts';
import { isForbidden, isNotFound } from '../../kube/errors.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { IMAGE_KIND, ISO_KIND } from '../image.ts';
import { findNamed, getNamed } from '../objects/named.ts';
import { print } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import { VM_KIND } from './kind.ts';
import { diagnose, type Diagnosis, type Seen } from '../../actions/diagnosis.ts';
import { instantOf, ownEvents, timeOf } from '../../actions/events.ts';
import { age, aligned, printable } from '../text.ts';

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
      terminal.out(formatPage(diagnosis, events));
      return;
    }
    const item = { ...diagnosis, failure: vm.status?.failure, events };
    await print(terminal, globals.output, { rows: [item], columns: [], itemOf: (row) => row });
  });
}

/**
 * Returns the VM. If the VM no longer exists, the error message contains the last Events of the VM. For example, users can see these Events
 * after a failed deployment, which deletes its VM.
 *
 * @throws CommandError when the VM does not exist; ApiError.
 */
async function existing(cluster: UserCluster, name: string, signal: AbortSignal): Promise<VM> {
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

async function seenOf(cluster: UserCluster, vm: VM, signal: AbortSignal): Promise<Seen> {
  const { client, namespace } = cluster;
  const { name } = vm.metadata;
  const [pod, images, nodes] = await Promise.all([
    ifReadable(client.get(PODS, { namespace, name }, { signal })),
    imagesOf(cluster, vm, signal),
    ifReadable(client.list(NODES, { signal })),
  ]);
  return { vm, pod, images, nodes: nodes?.items };
}

/**
 * Returns the Image and the ISO that the VM names. The result has none that the VM names in a registry, or takes from a VM config, or that
 * the user cannot read.
 */
async function imagesOf(
  cluster: UserCluster,
  { spec }: VM,
  signal: AbortSignal,
): Promise<NonNullable<Seen['images']>> {
  const named = [
    { kind: IMAGE_KIND, name: spec.image },
    { kind: ISO_KIND, name: spec.iso },
  ];
  const found = named.map(async ({ kind, name }) =>
    name === undefined || isImageReference(name)
      ? undefined
      : await undefinedIf(
          (error) => error instanceof CommandError || isForbidden(error),
          findNamed(cluster, kind, name, signal),
        ),
  );
  return (await Promise.all(found)).filter((object) => object !== undefined);
}

async function ifReadable<T>(asked: Promise<T>): Promise<T | undefined> {
  return await undefinedIf((error) => isForbidden(error) || isNotFound(error), asked);
}

/** Largest number of characters of a message on the page. JSON shows longer messages in full. */
const MESSAGE_LENGTH = 400;

export interface Shown {
  readonly time: string;
  readonly type: Event['type'];
  readonly reason: string;
  readonly count: number;
  readonly message: string;
}

/** Returns the parts of an Event that the page and the JSON output show. */
function shownEvent(event: Event): Shown {
  const { reason, note = '', series, type } = event;
  return { time: timeOf(event), type, reason, count: series?.count ?? 1, message: note };
}

export function formatPage(diagnosis: Diagnosis, events: readonly Shown[], now = Date.now()): string {
  const { name, phase, ok, reason, message, meaning, outlook, todo, checks } = diagnosis;
  const head = ok ? message : `VM ${name} (${phase}): ${message}`;
  const rows = checks.map((check) => [
    `  ${check.area}`,
    check.state,
    check.state === 'problem' ? (reason ?? '') : line(check.message),
  ]);
  const parts = [
    `${line(head)}\n`,
    aligned(rows),
    ...(meaning === undefined ? [] : [`${reason}: ${meaning}.\n`]),
    ...(outlook === undefined ? [] : [`${outlook}.\n`]),
    ...(todo.length === 0 ? [] : [`What to do:\n${todo.map((step) => `  ${line(step)}.\n`).join('')}`]),
    ...(events.length === 0 ? [] : [`Last events:\n${aligned(events.map((event) => eventRow(event, now)))}`]),
  ];
  return parts.join('\n');
}

/** Returns the message for a VM that no longer exists but has Events. */
function pageOfGone(
  { name, namespace }: { name: string; namespace: string },
  events: readonly Shown[],
  now = Date.now(),
): string {
  const rows = aligned(events.map((event) => eventRow(event, now))).trimEnd();
  return `vm "${name}" not found in namespace ${namespace}. The VM no longer exists. Its last events were:\n${rows}`;
}

function eventRow({ time, reason, count, message }: Shown, now: number): string[] {
  const times = count > 1 ? ` (${count} times)` : '';
  return [`  ${age(time, now)}`, line(reason), `${line(message)}${times}`];
}

function line(text: string): string {
  const plain = printable(text);
  return plain.length > MESSAGE_LENGTH ? `${plain.slice(0, MESSAGE_LENGTH)}…` : plain;
}

/**
 * Returns the Events of VMs and Pods with this name, the newest first. If the user may not read Events, the result is empty.
 *
 * @throws ApiError when the API server refuses for another reason.
 */
export async function eventsNamed(
  { client, namespace }: UserCluster,
  name: string,
  signal: AbortSignal,
): Promise<Event[]> {
  // The API server selects the Events, because a namespace can have tens of thousands of them.
  const fieldSelector = `regarding.name=${name}`;
  const found = await undefinedIf(
    (error) => isForbidden(error) || isNotFound(error),
    client.list(EVENTS, { namespace, fieldSelector, signal }),
  );
  return (found?.items ?? [])
    .filter(({ regarding }) => /^(VM|Pod)$/.test(regarding.kind ?? ''))
    .sort((a, b) => instantOf(b) - instantOf(a));
}
