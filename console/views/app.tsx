/** The frame of all pages: sign-in, navigation, the chosen namespace, and the fleet in it. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { NamespaceItem } from '../../api/http/namespace.ts';
import type { Api } from '../data/api.ts';
import { LiveFleet, type ConsoleSession } from '../data/fleet.ts';
import { formatPlace, type Place } from '../model/place.ts';
import { AccessPage } from './accesspage.tsx';
import { DeployPage } from './deploypage.tsx';
import { FleetPage } from './fleetpage.tsx';
import { usePlace } from './hooks.ts';
import { KIND_LISTS } from './kinds.ts';
import { ObjectsPage } from './objectspage.tsx';
import { TimesPage } from './timespage.tsx';
import { SignIn } from './signin.tsx';
import { VMDetails } from './vmdetails.tsx';
import { VMsPage } from './vmspage.tsx';

interface SignedIn {
  readonly api: Api;
  readonly session: ConsoleSession;
}

export function App() {
  const [signedIn, setSignedIn] = useState<SignedIn>();
  const [notice, setNotice] = useState<string>();
  const leave = (why: string | undefined) => {
    setNotice(why);
    setSignedIn(undefined);
  };
  if (signedIn === undefined) {
    return (
      <SignIn
        notice={notice}
        onSignedIn={(api, session) => setSignedIn({ api, session })}
        onSignedOut={() => leave('Your token is no longer accepted. Sign in again.')}
      />
    );
  }
  return <Frame {...signedIn} onLeave={() => leave(undefined)} />;
}

interface FrameProps extends SignedIn {
  readonly onLeave: () => void;
}

/** Pages that show VMs and hosts. Only they keep watches of them open. */
const FLEET_PAGES: ReadonlySet<Place['page']> = new Set(['fleet', 'vms', 'vm']);

function Frame({ api, session, onLeave }: FrameProps) {
  const place = usePlace();
  const last = useRef<string | undefined>(undefined);
  const namespace = namespaceOf(place, session, last.current);
  last.current = namespace;
  const needsFleet = FLEET_PAGES.has(place.page);
  const fleet = useMemo(() => new LiveFleet(api, session, namespace), [api, session, namespace, needsFleet]);
  useEffect(() => {
    if (needsFleet) {
      fleet.start();
    }
    return () => fleet.stop();
  }, [fleet, needsFleet]);
  return (
    <>
      <header class="bar">
        <strong class="brand">Berth</strong>
        <nav aria-label="Pages">
          <PageLink to={{ page: 'fleet', namespace }} place={place}>
            Fleet
          </PageLink>
          <PageLink to={{ page: 'vms', namespace, filter: '', sort: 'name' }} place={place}>
            VMs
          </PageLink>
          {KIND_LISTS.map(({ name, table: { plural } }) => (
            <PageLink key={plural} to={{ page: 'objects', plural, namespace, filter: '' }} place={place}>
              {name}
            </PageLink>
          ))}
          <PageLink to={{ page: 'times', namespace }} place={place}>
            Times
          </PageLink>
          <PageLink to={{ page: 'access', namespace }} place={place}>
            Access
          </PageLink>
        </nav>
        <div class="session">
          <NamespaceChoice api={api} session={session} place={place} namespace={namespace} />
          <span class="user" title={session.username}>
            {session.username.replace(/^system:serviceaccount:/, '')}
          </span>
          <button type="button" class="quiet" onClick={onLeave}>
            Sign out
          </button>
        </div>
      </header>
      <main class="page">
        <Page place={place} api={api} session={session} fleet={fleet} namespace={namespace} />
      </main>
    </>
  );
}

interface PageProps extends SignedIn {
  readonly place: Place;
  readonly fleet: LiveFleet;
  readonly namespace: string | undefined;
}

function Page({ place, api, session, fleet, namespace }: PageProps) {
  const list =
    place.page === 'objects' ? KIND_LISTS.find(({ table }) => table.plural === place.plural) : undefined;
  if (place.page === 'objects' && list !== undefined) {
    return <ObjectsPage api={api} list={list} place={place} namespace={namespace} />;
  }
  if (place.page === 'vm') {
    return <VMDetails key={`${place.namespace}/${place.name}`} api={api} fleet={fleet} place={place} />;
  }
  // These pages are about one namespace.
  const own = namespace ?? session.defaultNamespace;
  if (place.page === 'deploy') {
    return <DeployPage key={`${own}/${place.like}`} api={api} namespace={own} like={place.like} />;
  }
  if (place.page === 'times') {
    return <TimesPage key={namespace} api={api} namespace={namespace} />;
  }
  if (place.page === 'access') {
    return <AccessPage key={own} api={api} namespace={own} />;
  }
  return place.page === 'vms' ? <VMsPage fleet={fleet} place={place} /> : <FleetPage fleet={fleet} />;
}

interface PageLinkProps {
  readonly to: Place;
  readonly place: Place;
  readonly children: string;
}

function PageLink({ to, place, children }: PageLinkProps) {
  const isHere =
    to.page === 'objects'
      ? place.page === 'objects' && place.plural === to.plural
      : place.page === to.page || (place.page === 'vm' && to.page === 'vms');
  return (
    <a href={formatPlace(to)} {...(isHere && { 'aria-current': 'page' })}>
      {children}
    </a>
  );
}

const SERVICE_ACCOUNT = /^system:serviceaccount:([^:]+):/;

/**
 * Returns the namespace to show: the chosen one, or all if the user may see all, or that of the user. A single VM is shown in the namespace
 * before it, `last`, if that is its own.
 */
function namespaceOf(place: Place, session: ConsoleSession, last: string | undefined): string | undefined {
  const { username, defaultNamespace, mayWatch } = session;
  if (place.page === 'vm' && mayWatch.vms && last !== place.namespace) {
    return undefined;
  }
  if (place.namespace !== undefined || mayWatch.vms) {
    return place.namespace;
  }
  return SERVICE_ACCOUNT.exec(username)?.[1] ?? defaultNamespace;
}

interface NamespaceChoiceProps extends SignedIn {
  readonly place: Place;
  readonly namespace: string | undefined;
}

/** Value of the choice of all namespaces. No namespace has an empty name. */
const ALL = '';

function NamespaceChoice({ api, session, place, namespace }: NamespaceChoiceProps) {
  const [names, setNames] = useState<readonly string[]>([]);
  const [isUnread, setUnread] = useState(false);
  useEffect(() => {
    const end = new AbortController();
    api
      .get<{ items: NamespaceItem[] }>('/api/v1/namespaces', end.signal)
      .then(({ items }) => setNames(items.map(({ name }) => name)))
      .catch(() => setUnread(!end.signal.aborted));
    return () => end.abort();
  }, [api]);
  const options = [...new Set([...(namespace === undefined ? [] : [namespace]), ...names])].toSorted();
  const choose = (chosen: string) => {
    const next = chosen === ALL ? undefined : chosen;
    location.hash = formatPlace(
      place.page !== 'vm' && place.page !== 'fleet'
        ? { ...place, namespace: next }
        : { page: 'fleet', namespace: next },
    );
  };
  return (
    <label class="namespace">
      <span class="visually-hidden">Namespace</span>
      <select value={namespace ?? ALL} onChange={({ currentTarget }) => choose(currentTarget.value)}>
        {session.mayWatch.vms ? <option value={ALL}>All namespaces</option> : null}
        {options.map((name) => (
          <option key={name} value={name}>
            {name}
          </option>
        ))}
        {isUnread ? <option disabled>Other namespaces could not be read</option> : null}
      </select>
    </label>
  );
}
