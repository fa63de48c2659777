/** The list of the objects of one kind, with the columns of `kubectl get`. */
import { useEffect, useMemo } from 'preact/hooks';
import { age } from '../../base/age.ts';
import type { KubeObject } from '../../kube/objects.ts';
import type { Api } from '../data/api.ts';
import { LiveObjects } from '../data/liveobjects.ts';
import { cellText, type TableColumn, filteredObjects, shownColumns } from '../model/columns.ts';
import { formatPlace, type Place } from '../model/place.ts';
import { compareTexts } from '../model/texts.ts';
import { visibleRange } from '../model/visible.ts';
import { FilterBox } from './filterbox.tsx';
import { useChanges, useViewport } from './hooks.ts';
import type { KindList } from './kinds.ts';
import { Space } from './space.tsx';
import { Notice, ReadState, StaleNotice } from './states.tsx';

interface ObjectsPageProps {
  readonly api: Api;
  readonly list: KindList;
  readonly place: Extract<Place, { page: 'objects' }>;
  readonly namespace: string | undefined;
}

/** Height of a row in pixels. The style sheet has the same height. */
const ROW_HEIGHT = 30;

export function ObjectsPage({ api, list: { name, table }, place, namespace }: ObjectsPageProps) {
  const live = useMemo(() => new LiveObjects(api, table, namespace), [api, table, namespace]);
  useEffect(() => {
    live.start();
    return () => live.stop();
  }, [live]);
  useChanges(live.views);
  const all = live.objects.all;
  const shown = filteredObjects(all, table, place.filter).toSorted((one, other) =>
    compareTexts(one.metadata.name, other.metadata.name),
  );
  const count = shown.length === all.length ? String(all.length) : `${shown.length} of ${all.length}`;
  return (
    <div class="vms">
      <div class="tools">
        <h1>
          {name} <span class="count">{count}</span>
        </h1>
        <FilterBox place={place} placeholder="Texts in any column" help="all columns" />
      </div>
      <StaleNotice freshness={live.freshness} />
      {shown.length === 0 ? (
        <NoObjects live={live} name={name} place={place} />
      ) : (
        <ObjectTable
          objects={shown}
          columns={shownColumns(table)}
          hasNamespaces={live.namespace === undefined}
        />
      )}
    </div>
  );
}

interface ObjectTableProps {
  readonly objects: readonly KubeObject[];
  readonly columns: readonly TableColumn[];
  readonly hasNamespaces: boolean;
}

function ObjectTable({ objects, columns, hasNamespaces }: ObjectTableProps) {
  const [element, viewport] = useViewport();
  const { first, end, above, below } = visibleRange(objects.length, ROW_HEIGHT, viewport);
  return (
    // The keyboard scrolls the table, which has no links.
    <div class="rows plain" ref={element} tabIndex={0} role="region" aria-label="Objects">
      <table aria-rowcount={objects.length + 1}>
        <thead>
          <tr>
            <th scope="col">Name</th>
            {columns.map(({ name, type }) => (
              <th key={name} scope="col" class={name === 'Message' ? 'message' : type}>
                {name}
              </th>
            ))}
            <th scope="col">Age</th>
          </tr>
        </thead>
        <tbody>
          <Space height={above} columns={columns.length + 2} />
          {objects.slice(first, end).map((object, index) => (
            <tr
              key={`${object.metadata.namespace}/${object.metadata.name}`}
              aria-rowindex={first + index + 2}
            >
              <td>
                {object.metadata.name}
                {hasNamespaces ? <span class="in"> {object.metadata.namespace}</span> : null}
              </td>
              {columns.map((column) => (
                <Cell key={column.name} text={cellText(object, column)} />
              ))}
              <td class="number">{age(object.metadata.creationTimestamp)}</td>
            </tr>
          ))}
          <Space height={below} columns={columns.length + 2} />
        </tbody>
      </table>
    </div>
  );
}

function Cell({ text }: { readonly text: string }) {
  return <td title={text}>{text}</td>;
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
