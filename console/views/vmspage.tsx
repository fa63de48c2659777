/** The list of VMs: a filter, and a table of which only the visible rows are in the page. */
import { useMemo } from 'preact/hooks';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { diagnose, phaseOf } from '../../actions/diagnosis.ts';
import { age } from '../../base/age.ts';
import type { LiveFleet } from '../data/fleet.ts';
import { FILTER_KEYS, vmFilter } from '../model/filter.ts';
import { formatPlace, type Place } from '../model/place.ts';
import { type Range, ROW_HEIGHT, ROWS_STEP, visibleRange } from '../model/visible.ts';
import { imageOf, ownerOf, type SortKey, sortedVMs } from '../model/vms.ts';
import { deployAddress } from './deploypage.tsx';
import { FilterBox } from './filterbox.tsx';
import { useChanges, useViewport } from './hooks.ts';
import { Phase } from './phase.tsx';
import { Space } from './space.tsx';
import { Notice, ReadState, StaleNotice } from './states.tsx';

type VMsPlace = Extract<Place, { page: 'vms' }>;

interface VMsPageProps {
  readonly fleet: LiveFleet;
  readonly place: VMsPlace;
}

export function VMsPage({ fleet, place }: VMsPageProps) {
  useChanges(fleet.views);
  const all = fleet.vms.all;
  const shown = sortedVMs(all.filter(vmFilter(place.filter)), place.sort);
  return (
    <div class="vms">
      <div class="tools">
        <h1>
          VMs{' '}
          <span class="count">
            {shown.length === all.length ? all.length : `${shown.length} of ${all.length}`}
          </span>
        </h1>
        <FilterBox
          place={place}
          placeholder="phase:Pending image:ubuntu alice"
          help={FILTER_KEYS.map((key) => `${key}:`).join(' ')}
        />
        <a class="button" href={deployAddress(fleet.namespace)}>
          Deploy a VM
        </a>
      </div>
      <StaleNotice freshness={fleet.freshness.vms} />
      <VMTable fleet={fleet} place={place} vms={shown} />
    </div>
  );
}

const COLUMNS: readonly { readonly name: string; readonly key: SortKey | undefined }[] = [
  { name: 'Name', key: 'name' },
  { name: 'Phase', key: 'phase' },
  { name: 'Why', key: undefined },
  { name: 'Host', key: 'host' },
  { name: 'Image', key: 'image' },
  { name: 'Owner', key: 'owner' },
  { name: 'Age', key: 'age' },
];

interface VMTableProps extends VMsPageProps {
  readonly vms: readonly VM[];
}

function VMTable({ fleet, place, vms }: VMTableProps) {
  const [element, viewport] = useViewport(ROWS_STEP);
  const range = visibleRange(vms.length, ROW_HEIGHT, viewport);
  return (
    <div class="rows" ref={element}>
      {vms.length === 0 ? (
        <NoVMs fleet={fleet} filter={place.filter} />
      ) : (
        <table aria-rowcount={vms.length + 1} onKeyDown={moveFocus}>
          <thead>
            <tr>
              {COLUMNS.map(({ name, key }) => (
                <th key={name} scope="col" aria-sort={key === place.sort ? 'ascending' : undefined}>
                  {key === undefined ? name : <a href={formatPlace({ ...place, sort: key })}>{name}</a>}
                </th>
              ))}
            </tr>
          </thead>
          <Rows vms={vms} range={range} hasNamespaces={fleet.namespace === undefined} />
        </table>
      )}
    </div>
  );
}

interface RowsProps {
  readonly vms: readonly VM[];
  readonly range: Range;
  readonly hasNamespaces: boolean;
}

function Rows({ vms, range: { first, end, above, below }, hasNamespaces }: RowsProps) {
  return (
    <tbody>
      <Space height={above} />
      {vms.slice(first, end).map((vm, index) => (
        <Row
          key={`${vm.metadata.namespace}/${vm.metadata.name}`}
          vm={vm}
          // The header is row 1.
          index={first + index + 2}
          hasNamespace={hasNamespaces}
        />
      ))}
      <Space height={below} />
    </tbody>
  );
}

interface RowProps {
  readonly vm: VM;
  readonly index: number;
  readonly hasNamespace: boolean;
}

/** A row that is rendered again only after a change of it. A change of the VM is another object. */
function Row({ vm, index, hasNamespace }: RowProps) {
  const lived = age(vm.metadata.creationTimestamp);
  return useMemo(
    () => <RowView vm={vm} index={index} hasNamespace={hasNamespace} lived={lived} />,
    [vm, index, hasNamespace, lived],
  );
}

function RowView({ vm, index, hasNamespace, lived }: RowProps & { readonly lived: string }) {
  const { name, namespace = '' } = vm.metadata;
  const { ok, message } = diagnose({ vm });
  const why = ok ? '' : message;
  return (
    <tr aria-rowindex={index}>
      <td>
        <a href={formatPlace({ page: 'vm', namespace, name })} data-row>
          {name}
        </a>
        {hasNamespace ? <span class="in"> {namespace}</span> : null}
      </td>
      <td>
        <Phase phase={phaseOf(vm)} />
      </td>
      <td title={why}>{why}</td>
      <td>{vm.status?.nodeName}</td>
      <td title={imageOf(vm)}>{imageOf(vm)}</td>
      <td title={ownerOf(vm)}>{ownerOf(vm)}</td>
      <td class="number">{lived}</td>
    </tr>
  );
}

/** Moves the focus to the link of the row above or below. */
function moveFocus(event: KeyboardEvent & { readonly currentTarget: HTMLTableElement }): void {
  const step = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0;
  if (step === 0) {
    return;
  }
  const links = [...event.currentTarget.querySelectorAll<HTMLElement>('a[data-row]')];
  const at = links.findIndex((link) => link === document.activeElement);
  const next = at < 0 ? links[0] : links[at + step];
  if (next !== undefined) {
    event.preventDefault();
    next.focus();
  }
}

function NoVMs({ fleet, filter }: { readonly fleet: LiveFleet; readonly filter: string }) {
  const { freshness, namespace, vms } = fleet;
  if (freshness.vms.state !== 'live') {
    return <ReadState freshness={freshness.vms} what="VMs" namespace={namespace} />;
  }
  if (vms.size > 0) {
    return (
      <Notice title="No VM fits the filter">
        <p>
          <code>{filter}</code> fits none of {vms.size} VMs.{' '}
          <a href={formatPlace({ page: 'vms', namespace, filter: '', sort: 'name' })}>Show all</a>
        </p>
      </Notice>
    );
  }
  return (
    <Notice title={namespace === undefined ? 'There are no VMs yet' : `No VMs in namespace ${namespace} yet`}>
      <p>
        <a href={deployAddress(namespace)}>Deploy the first one</a>, or make it with the command or with
        kubectl:
      </p>
      <pre>berth vm deploy --image IMAGE{'\n'}kubectl apply -f examples/vm.yaml</pre>
    </Notice>
  );
}
