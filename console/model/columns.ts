/** The columns of a kind, which are those of `kubectl get`, and the texts of an object in them. */
import { age } from '../../base/age.ts';
import type { KubeObject } from '../../kube/objects.ts';

export interface TableColumn {
  readonly name: string;
  readonly type: 'string' | 'integer' | 'date';
  /** Path of the value: names after dots, and at most one condition in brackets. */
  readonly jsonPath: string;
  /** Whether only the wide form of `kubectl get` has the column. */
  readonly wide?: true;
}

/** A kind, with the columns of its objects. */
export interface KindTable {
  readonly kind: string;
  readonly plural: string;
  readonly namespaced: boolean;
  readonly columns: readonly TableColumn[];
}

/** Parts of a path: `.name`, or a condition of a list with the name of its type. */
const PART = /\.(\w+)|\[\?\(@\.(\w+)=="([^"]+)"\)\]/g;
/** Names of columns that the page does not show: it has the name and the age of each object itself. */
const OWN_COLUMNS: ReadonlySet<string> = new Set(['Age']);
/** Wide column that the page shows, because it says why an object is not ready. */
const MESSAGE = 'Message';

/** Returns the columns that the page shows beside the name and the age. */
export function shownColumns({ columns }: KindTable): TableColumn[] {
  return columns.filter(
    ({ name, wide }) => !OWN_COLUMNS.has(name) && (wide === undefined || name === MESSAGE),
  );
}

/** Returns the text of an object in a column. It is empty if the object has no value there. `now` is in milliseconds since the epoch. */
export function cellText(object: KubeObject, { jsonPath, type }: TableColumn, now = Date.now()): string {
  const value = valueAt(object, jsonPath);
  if (value === undefined || value === null) {
    return '';
  }
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return type === 'date' ? age(text, now) : text;
}

function valueAt(object: unknown, jsonPath: string): unknown {
  let value = object;
  for (const [, name, key = '', wanted] of jsonPath.matchAll(PART)) {
    value = name === undefined ? itemWith(value, key, wanted) : fieldOf(value, name);
  }
  return value;
}

function fieldOf(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>)[name] : undefined;
}

function itemWith(list: unknown, key: string, wanted: string | undefined): unknown {
  return Array.isArray(list) ? list.find((item) => fieldOf(item, key) === wanted) : undefined;
}

/** Longest filter that is used. */
const FILTER_LENGTH = 500;

/** Returns the objects whose name, namespace or columns contain all terms of the text, in the order of their names. */
export function filteredObjects(
  objects: readonly KubeObject[],
  table: KindTable,
  text: string,
): KubeObject[] {
  const terms = text.slice(0, FILTER_LENGTH).toLowerCase().split(/\s+/).filter(Boolean);
  const columns = shownColumns(table);
  const textOf = (object: KubeObject) =>
    [
      object.metadata.name,
      object.metadata.namespace ?? '',
      ...columns.map((column) => cellText(object, column)),
    ]
      .join('\n')
      .toLowerCase();
  return terms.length === 0
    ? [...objects]
    : objects.filter((object) => {
        const own = textOf(object);
        return terms.every((term) => own.includes(term));
      });
}
