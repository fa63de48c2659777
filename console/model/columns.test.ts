import { expect, it } from 'vitest';
import { kinds } from '../../api/v1alpha1/kinds.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { cellText, filteredObjects, type KindTable, shownColumns } from './columns.ts';

const TABLES: readonly KindTable[] = kinds(240);
const POOLS = TABLES.find(({ plural }) => plural === 'vmpools') as KindTable;

const pool = (name: string, ready: string): KubeObject =>
  ({
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VMPool',
    metadata: { name, namespace: 'team' },
    spec: { replicas: 3 },
    status: {
      readyReplicas: 2,
      conditions: [{ type: 'Ready', reason: ready, message: `${name} is ${ready}` }],
    },
  }) as KubeObject;

it('shows the columns of kubectl, and why an object is not ready', () => {
  const cells = Object.fromEntries(
    shownColumns(POOLS).map((column) => [column.name, cellText(pool('a', 'Filling'), column)]),
  );
  expect(cells).toMatchObject({ Wanted: '3', Ready: '2', Reason: 'Filling', Message: 'a is Filling' });
  expect(cells).not.toHaveProperty('Age');
  expect(cells).not.toHaveProperty('Image');
});

it.each(TABLES.flatMap(({ kind, columns }) => columns.map((column) => ({ kind, column }))))(
  'reads the column $column.name of $kind from any object',
  ({ column }) => {
    // Each part of the path is understood, so that no column is empty for a reason that nobody sees.
    expect(column.jsonPath.replaceAll(/\.\w+|\[\?\(@\.\w+=="[^"]+"\)\]/g, '')).toBe('');
    for (const object of [{}, { status: null }, { status: { conditions: 'x' }, spec: [] }]) {
      expect(cellText(object as KubeObject, column)).toBe('');
    }
  },
);

it('shows dates as ages, and lists as texts', () => {
  const now = Date.parse('2026-11-30T12:00:00Z');
  const column = { name: 'x', jsonPath: '.status.x' } as const;
  const object = (x: unknown) => ({ status: { x } }) as unknown as KubeObject;
  expect(cellText(object('2026-11-30T11:00:00Z'), { ...column, type: 'date' }, now)).toBe('60m');
  expect(cellText(object(['10.0.0.1']), { ...column, type: 'string' }, now)).toBe('["10.0.0.1"]');
  expect(cellText(object(0), { ...column, type: 'integer' }, now)).toBe('0');
});

it.each([
  ['', ['a', 'b']],
  ['FILLING', ['a']],
  ['team b', ['b']],
  ['team nothing', []],
])('the filter %s fits %j', (text, expected) => {
  const found = filteredObjects([pool('a', 'Filling'), pool('b', 'Full')], POOLS, text);
  expect(found.map(({ metadata }) => metadata.name)).toEqual(expected);
});
