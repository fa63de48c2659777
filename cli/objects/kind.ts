/** A kind whose objects the command shows. */
import type { KubeObject, Resource } from '../../kube/objects.ts';
import type { Globals } from '../globals.ts';
import { type Column, type Listing, print } from '../output.ts';
import type { Terminal } from '../terminal.ts';

/** A line of a page: a word and its value. Lines without a value are left out. */
export type PageLine = readonly [word: string, value: string | number | undefined];

export interface NounKind<T extends KubeObject> {
  readonly type: Resource<T>;
  /** Word for one object in messages, for example `vm`. It is also the noun of the commands. */
  readonly noun: string;
  /** Word for several objects in sentences, for example `VMs`. */
  readonly plural: string;
  readonly columns: readonly Column<T>[];
  /** Returns the lines of the page that `get` shows instead of a table. `command` is the name of this command, for advice. */
  readonly pageOf?: (object: T, command: string) => readonly PageLine[];
  /** Returns the object as the HTTP API shows it. */
  readonly itemOf: (object: T) => { name: string };
  /** Returns how many seconds the deletion of the object may take because it asks for that. */
  readonly graceSeconds?: (object: T) => number;
  /** Whether users of each namespace may also use the objects of the default namespace. */
  readonly isShared: boolean;
}

export function listingOf<T extends KubeObject>(
  { columns, itemOf }: NounKind<T>,
  rows: readonly T[],
  none = '',
): Listing<T> {
  return { rows, columns, itemOf, none };
}

/**
 * Writes the results: a sentence for each object, or the objects in a format for programs. Without objects, it writes nothing, unless
 * `isDone` is true. In this case, programs get an empty list.
 */
export async function report<T extends KubeObject>(
  terminal: Terminal,
  { output }: Globals,
  done: { kind: NounKind<T>; objects: readonly T[]; sentence: (name: string) => string; isDone?: boolean },
): Promise<void> {
  const { kind, objects, sentence, isDone = objects.length > 0 } = done;
  if (output === 'table' || output === 'wide') {
    terminal.out(objects.map(({ metadata }) => `${sentence(metadata.name)}\n`).join(''));
  } else if (isDone) {
    await print(terminal, output, listingOf(kind, objects));
  }
}
