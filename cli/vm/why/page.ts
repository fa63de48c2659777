/** Writes a diagnosis as one page for people. */
import type { Event } from '../../../kube/core.ts';
import { age, aligned, printable } from '../../text.ts';
import type { Diagnosis } from './diagnosis.ts';
import { timeOf } from './events.ts';

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
export function shownEvent(event: Event): Shown {
  const { reason, note = '', series, type } = event;
  return { time: timeOf(event), type, reason, count: series?.count ?? 1, message: note };
}

export function pageOf(diagnosis: Diagnosis, events: readonly Shown[], now = Date.now()): string {
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
export function pageOfGone(
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
