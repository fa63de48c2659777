/** The list of the objects of one kind, with the columns of `kubectl get`. */
import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import { age } from '../../base/age.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import type { KubeObject } from '../../kube/objects.ts';
import type { Api } from '../data/api.ts';
import { LiveObjects } from '../data/liveobjects.ts';
import { filteredObjects } from '../model/columns.ts';
import { formatPlace, type Place } from '../model/place.ts';
import { compareTexts } from '../model/texts.ts';
import { ROW_HEIGHT, ROWS_STEP, visibleRange } from '../model/visible.ts';
import { CacheHosts } from './cachehosts.tsx';
import { FilterBox } from './filterbox.tsx';
import { useChanges, useViewport } from './hooks.ts';
import { kindColumns, type ShownColumn } from './kindcolumns.tsx';
import type { KindList } from './kinds.ts';
import type { ObjectTools } from './objectactions.tsx';
import { type ActionOutcome, OutcomeLine } from './outcome.tsx';
import { Space } from './space.tsx';
import { Notice, ReadState, StaleNotice } from './states.tsx';

interface ObjectsPageProps {
  readonly api: Api;
  readonly list: KindList;
  readonly place: Extract<Place, { page: 'objects' }>;
  readonly namespace: string | undefined;
}

export function ObjectsPage({ api, list: { name, table }, place, namespace }: ObjectsPageProps) {
  const live = useMemo(() => new LiveObjects(api, table, namespace), [api, table, namespace]);
  useEffect(() => {
    live.start();
    return () => live.stop();
  }, [live]);
  useChanges(live.views);
  const [dialog, show] = useState<ComponentChildren>(null);
  const [outcome, tell] = useState<ActionOutcome>();
  const all = live.objects.all;
  const shown = filteredObjects(all, table, place.filter).toSorted((one, other) =>
    compareTexts(one.metadata.name, other.metadata.name),
  );
  const tools = { api, show, tell };
  return (
    <div class="vms">
      <div class="tools">
        <h1>
          {name} <span class="count">{countText(shown.length, all.length)}</span>
        </h1>
        {table.plural === CACHE ? <CacheViews place={place} /> : null}
        <FilterBox place={place} placeholder="Texts in any column" help="all columns" />
      </div>
      <StaleNotice freshness={live.freshness} />
      <OutcomeLine outcome={outcome} />
      {shown.length === 0 ? (
        <NoObjects live={live} name={name} place={place} />
      ) : (
        <ObjectList live={live} objects={shown} place={place} tools={tools} />
      )}
      {dialog}
    </div>
  );
}

function countText(shown: number, all: number): string {
  return shown === all ? String(all) : `${shown} of ${all}`;
}

interface ObjectListProps {
  readonly live: LiveObjects;
  readonly objects: readonly KubeObject[];
  readonly place: ObjectsPageProps['place'];
  readonly tools: ObjectTools;
}

/** Shows the objects, or the hosts that have them. */
function ObjectList({ live: { table, namespace }, objects, place, tools }: ObjectListProps) {
  return table.plural === CACHE && place.by === 'host' ? (
    <CacheHosts entries={objects as ImageCacheEntry[]} />
  ) : (
    <ObjectTable
      objects={objects}
      columns={kindColumns(table, tools)}
      hasNamespaces={namespace === undefined && table.namespaced}
    />
  );
}

/** Kind whose list can also be grouped by hosts. */
const CACHE = 'imagecacheentries';

function CacheViews({ place }: Pick<ObjectsPageProps, 'place'>) {
  const { by, ...others } = place;
  return (
    <nav aria-label="Groups" class="groups">
      <a href={formatPlace(others)} {...(by === undefined && { 'aria-current': 'true' })}>
        by image
      </a>
      <a href={formatPlace({ ...others, by: 'host' })} {...(by === 'host' && { 'aria-current': 'true' })}>
        by host
      </a>
    </nav>
  );
}

interface ObjectTableProps {
  readonly objects: readonly KubeObject[];
  readonly columns: readonly ShownColumn[];
  readonly hasNamespaces: boolean;
}

function ObjectTable({ objects, columns, hasNamespaces }: ObjectTableProps) {
  const [element, viewport] = useViewport(ROWS_STEP);
  const { first, end, above, below } = visibleRange(objects.length, ROW_HEIGHT, viewport);
  return (
    // The keyboard scrolls the table, which may have no links.
    <div class="rows plain" ref={element} tabIndex={0} role="region" aria-label="Objects">
      <table aria-rowcount={objects.length + 1}>
        <thead>
          <tr>
            <th scope="col">Name</th>
            {columns.map(({ name, style }) => (
              <th key={name} scope="col" class={style}>
                {name}
              </th>
            ))}
            <th scope="col" class="age-column">
              Age
            </th>
          </tr>
        </thead>
        <tbody>
          <Space height={above} />
          {objects.slice(first, end).map((object, index) => (
            <tr
              key={`${object.metadata.namespace}/${object.metadata.name}`}
              aria-rowindex={first + index + 2}
            >
              <td title={object.metadata.name}>
                {object.metadata.name}
                {hasNamespaces ? <span class="in"> {object.metadata.namespace}</span> : null}
              </td>
              {columns.map((column) => (
                <Cell key={column.name} object={object} column={column} />
              ))}
              <td class="number">{age(object.metadata.creationTimestamp)}</td>
            </tr>
          ))}
          <Space height={below} />
        </tbody>
      </table>
    </div>
  );
}

interface CellProps {
  readonly object: KubeObject;
  readonly column: ShownColumn;
}

function Cell({ object, column: { style, text, view } }: CellProps) {
  const own = text(object);
  return (
    <td class={style} title={own}>
      {view === undefined ? own : view(object)}
    </td>
  );
}

interface NoObjectsProps {
  readonly live: LiveObjects;
  readonly name: string;
  readonly place: ObjectsPageProps['place'];
}

function NoObjects({ live, name, place }: NoObjectsProps) {
  if (live.freshness.state !== 'live') {
    return <ReadState freshness={live.freshness} what={name} namespace={live.namespace} />;
  }
  if (live.objects.size > 0) {
    return (
      <Notice title="Nothing fits the filter">
        <p>
          <code>{place.filter}</code> fits none of {live.objects.size} objects.{' '}
          <a href={formatPlace({ ...place, filter: '' })}>Show all</a>
        </p>
      </Notice>
    );
  }
  const where = live.namespace === undefined ? '' : ` in namespace ${live.namespace}`;
  return (
    <Notice title={`There are no ${name}${where} yet`}>
      <p>
        <code>kubectl explain {live.table.kind.toLowerCase()}.spec</code> shows the fields of a new one.
      </p>
    </Notice>
  );
}
