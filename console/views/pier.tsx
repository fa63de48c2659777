/** One host of the harbour, with its berths. */
import { useMemo } from 'preact/hooks';
import type { Berth, PierState, Occupant, Pier } from '../model/harbour.ts';
import { formatPlace } from '../model/place.ts';
import { toneOf } from '../model/vms.ts';

/** Names of the states that a card shows. Free and full hosts need none, because their berths show it. */
const LABELS: Readonly<Partial<Record<PierState, string>>> = {
  draining: 'draining',
  cordoned: 'cordoned',
  starting: 'starting',
  off: 'off',
  silent: 'silent',
  fenced: 'fenced',
  closed: 'closed',
};

/** A card that is rendered again only after a change of it. Each render of the fleet makes all piers anew. */
export function PierCard({ pier }: { readonly pier: Pier }) {
  return useMemo(() => <Card pier={pier} />, [JSON.stringify(pier)]);
}

function Card({ pier }: { readonly pier: Pier }) {
  const { name, namespace, state, why, slots, used, berths, hidden, architecture, tags } = pier;
  const label = LABELS[state];
  const facts = [`Host ${name}`, architecture, `namespace ${namespace}`, ...tags.map((tag) => `tag ${tag}`)];
  return (
    <article class={`pier host-${state}`} aria-label={`Host ${name}: ${used} of ${slots} berths taken`}>
      <header>
        <h2 title={facts.filter(Boolean).join(', ')}>{name}</h2>
        {label === undefined ? (
          <span class="room">
            {used}/{slots}
          </span>
        ) : (
          <span class="label" title={why}>
            {label}
          </span>
        )}
      </header>
      <ul class="quay">
        {berths.map((berth, index) => (
          // A berth has no identity: machines are drawn one after the other.
          <li key={index}>
            <BerthMark berth={berth} />
          </li>
        ))}
        {hidden > 0 ? <li class="hidden">+{hidden}</li> : null}
      </ul>
      {why === undefined ? null : (
        <p class="why" title={why}>
          {why}
        </p>
      )}
    </article>
  );
}

function BerthMark({ berth }: { readonly berth: Berth }) {
  if (berth === 'free') {
    return <span class="berth" title="Free berth" />;
  }
  if (berth === 'other') {
    return (
      <span
        class="berth hull tone-other"
        title="Taken by a machine of another namespace, or by work on images"
      >
        <span class="visually-hidden">Taken</span>
      </span>
    );
  }
  const text = describe(berth);
  const style = `berth hull tone-${toneOf(berth.phase)}`;
  return berth.kind === 'VM' ? (
    <a class={style} href={formatPlace({ page: 'vm', ...berth })} title={text} aria-label={text} />
  ) : (
    <span class={`${style} emulator`} title={text}>
      <span class="visually-hidden">{text}</span>
    </span>
  );
}

function describe({ kind, namespace, name, phase }: Occupant): string {
  return `${kind} ${namespace}/${name}: ${phase}`;
}
