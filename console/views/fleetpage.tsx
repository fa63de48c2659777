/** The fleet: the harbour with all hosts, the machines that wait, and the shares of namespaces. */
import type { VM } from '../../api/v1alpha1/vm.ts';
import { age } from '../../base/age.ts';
import type { LiveFleet } from '../data/fleet.ts';
import { columnsIn, type PierState, type Pier, type Totals, totalsOf } from '../model/harbour.ts';
import { formatPlace } from '../model/place.ts';
import { visibleRange } from '../model/visible.ts';
import { namespaceShares, phaseCounts, waitingVMs } from '../model/vms.ts';
import { useChanges, useViewport } from './hooks.ts';
import { Phase } from './phase.tsx';
import { PierCard } from './pier.tsx';
import { Notice, ReadState, StaleNotice } from './states.tsx';

/** Height of a row of piers in pixels, with the gap below it. The style sheet has the same height. */
const PIER_ROW_HEIGHT = 96;
/** Rows of piers above and below the visible ones. A row has several piers with up to 16 berths each. */
const SPARE_PIER_ROWS = 3;
/** Largest number of waiting VMs that the page explains. */
const EXPLAINED = 50;
/** Largest number of namespaces in the table of shares. */
const SHARES = 50;

export function FleetPage({ fleet }: { readonly fleet: LiveFleet }) {
  useChanges(fleet.views);
  const piers = fleet.piers();
  const vms = fleet.vms.all;
  return (
    <div class="fleet">
      <section class="harbour" aria-labelledby="harbour-title">
        <h1 id="harbour-title">Fleet</h1>
        <StaleNotice freshness={fleet.freshness.hosts} />
        <Summary totals={totalsOf(piers)} />
        <Harbour fleet={fleet} piers={piers} />
      </section>
      <aside>
        <Waiting fleet={fleet} vms={vms} />
        <Phases vms={vms} namespace={fleet.namespace} />
        {fleet.namespace === undefined ? <Shares vms={vms} /> : null}
      </aside>
    </div>
  );
}

/** States of hosts in the order of the summary, with their names. */
const STATES: Readonly<Record<PierState, string>> = {
  free: 'with free berths',
  full: 'full',
  draining: 'draining',
  cordoned: 'cordoned',
  starting: 'starting',
  off: 'off',
  silent: 'silent',
  fenced: 'fenced',
  closed: 'closed',
};

function Summary({ totals }: { readonly totals: Totals }) {
  const { hosts, slots, used, free, states } = totals;
  const parts = Object.entries(STATES).flatMap(([state, name]) => {
    const count = states[state as PierState] ?? 0;
    return count === 0 ? [] : [{ state, text: `${count} ${name}` }];
  });
  return (
    <>
      <dl class="figures">
        <Figure name="hosts" value={hosts} />
        <Figure name="berths" value={slots} />
        <Figure name="taken" value={used} />
        <Figure name="free" value={free} />
      </dl>
      <ul class="states">
        {parts.map(({ state, text }) => (
          <li key={state} class={`host-${state}`}>
            {text}
          </li>
        ))}
      </ul>
    </>
  );
}

function Figure({ name, value }: { readonly name: string; readonly value: number }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value.toLocaleString('en')}</dd>
    </div>
  );
}

function Harbour({ fleet, piers }: { readonly fleet: LiveFleet; readonly piers: readonly Pier[] }) {
  const [element, viewport] = useViewport(PIER_ROW_HEIGHT);
  const columns = columnsIn(viewport.width);
  const rows = Math.ceil(piers.length / columns);
  const { first, end, above, below } = visibleRange(rows, PIER_ROW_HEIGHT, viewport, SPARE_PIER_ROWS);
  return (
    <div class="piers" ref={element}>
      {piers.length === 0 ? <NoHosts fleet={fleet} /> : null}
      <div style={{ height: `${above}px` }} />
      <div class="pier-grid" style={{ gridTemplateColumns: `repeat(${columns}, minmax(0, 1fr))` }}>
        {piers.slice(first * columns, end * columns).map((pier) => (
          <PierCard key={pier.name} pier={pier} />
        ))}
      </div>
      <div style={{ height: `${below}px` }} />
    </div>
  );
}

function NoHosts({ fleet: { freshness, namespace } }: { readonly fleet: LiveFleet }) {
  if (freshness.hosts.state !== 'live') {
    return <ReadState freshness={freshness.hosts} what="hosts" namespace={namespace} />;
  }
  return (
    <Notice title="There are no hosts">
      <p>No host is there for {namespace === undefined ? 'VMs' : `VMs of namespace ${namespace}`}.</p>
      <p>
        Add a host as <code>docs/operate/hosts.md</code> describes, or share one with this namespace.
      </p>
    </Notice>
  );
}

function Waiting({ fleet, vms }: { readonly fleet: LiveFleet; readonly vms: readonly VM[] }) {
  const { total, first } = waitingVMs(vms, EXPLAINED);
  const { freshness, namespace } = fleet;
  return (
    <section aria-labelledby="waiting-title">
      <h2 id="waiting-title">Waiting {total > 0 ? <span class="count">{total}</span> : null}</h2>
      <StaleNotice freshness={freshness.vms} />
      {freshness.vms.state !== 'live' && vms.length === 0 ? (
        <ReadState freshness={freshness.vms} what="VMs" namespace={namespace} />
      ) : null}
      {freshness.vms.state === 'live' && total === 0 ? <p class="calm">Nothing waits.</p> : null}
      <ul class="waiting">
        {first.map(({ vm, sentence }) => (
          <li key={`${vm.metadata.namespace}/${vm.metadata.name}`}>
            <a href={addressOf(vm)}>{vm.metadata.name}</a>
            <span class="age">{age(vm.metadata.creationTimestamp)}</span>
            <p>{sentence}</p>
          </li>
        ))}
      </ul>
      {total > first.length ? (
        <p>
          <a href={formatPlace({ page: 'vms', namespace, filter: 'phase:Pending', sort: 'age' })}>
            {total - first.length} more wait
          </a>
        </p>
      ) : null}
    </section>
  );
}

function addressOf({ metadata: { namespace = '', name } }: VM): string {
  return formatPlace({ page: 'vm', namespace, name });
}

interface PhasesProps {
  readonly vms: readonly VM[];
  readonly namespace: string | undefined;
}

function Phases({ vms, namespace }: PhasesProps) {
  return (
    <section aria-labelledby="phases-title">
      <h2 id="phases-title">
        VMs <span class="count">{vms.length}</span>
      </h2>
      <ul class="phases">
        {phaseCounts(vms).map(([phase, count]) => (
          <li key={phase}>
            <a href={formatPlace({ page: 'vms', namespace, filter: `phase:${phase}`, sort: 'name' })}>
              <Phase phase={phase} />
              <span class="number">{count}</span>
            </a>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Shares({ vms }: { readonly vms: readonly VM[] }) {
  const shares = namespaceShares(vms);
  if (shares.length === 0) {
    return null;
  }
  return (
    <section aria-labelledby="shares-title">
      <h2 id="shares-title">Namespaces</h2>
      <table class="shares">
        <thead>
          <tr>
            <th scope="col">Namespace</th>
            <th scope="col">Berths</th>
            <th scope="col">Waiting</th>
          </tr>
        </thead>
        <tbody>
          {shares.slice(0, SHARES).map(({ namespace, slots, waiting }) => (
            <tr key={namespace}>
              <th scope="row">
                <a href={formatPlace({ page: 'fleet', namespace })}>{namespace}</a>
              </th>
              <td>{slots}</td>
              <td>{waiting}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {shares.length > SHARES ? <p>{shares.length - SHARES} more have fewer berths.</p> : null}
    </section>
  );
}
