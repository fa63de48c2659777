/** One VM: why it is as it is, what it is made of, what happened to it, and what can be done with it. */
import { Fragment } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Command } from '../../api/http/vm.ts';
import { diagnose, phaseOf } from '../../actions/diagnosis.ts';
import { ownEvents, timeOf } from '../../actions/events.ts';
import { age } from '../../base/age.ts';
import type { Event } from '../../kube/core.ts';
import type { Api } from '../data/api.ts';
import type { LiveFleet } from '../data/fleet.ts';
import { pauseFor, whenShown } from '../data/waits.ts';
import { formatPlace, type Place } from '../model/place.ts';
import { imageOf, ownerOf } from '../model/vms.ts';
import { useChanges } from './hooks.ts';
import { Phase } from './phase.tsx';
import { LogView } from './logview.tsx';
import { ScreenView } from './screenview.tsx';
import { Notice, ReadState, StaleNotice } from './states.tsx';
import { ConsoleView } from './terminalview.tsx';
import { VMObject, VMSnapshots } from './vmobject.tsx';

interface DetailsProps {
  readonly api: Api;
  readonly fleet: LiveFleet;
  readonly place: Extract<Place, { page: 'vm' }>;
}

export function VMDetails({ api, fleet, place }: DetailsProps) {
  const { namespace, name, view } = place;
  useChanges(fleet.views);
  const vm = fleet.vms.get(`${namespace}/${name}`);
  if (vm === undefined) {
    return fleet.freshness.vms.state === 'live' ? (
      <Notice title={`VM ${name} does not exist`}>
        <p>It was deleted, or it never was in namespace {namespace}.</p>
        <p>
          <a href={formatPlace({ page: 'vms', namespace, filter: '', sort: 'name' })}>
            All VMs of the namespace
          </a>
        </p>
      </Notice>
    ) : (
      <ReadState freshness={fleet.freshness.vms} what="VMs" namespace={namespace} />
    );
  }
  return (
    <div class="details">
      <StaleNotice freshness={fleet.freshness.vms} />
      <header>
        <h1>
          {name} <Phase phase={phaseOf(vm)} />
        </h1>
        <Actions api={api} vm={vm} />
      </header>
      <Views place={place} />
      {view === undefined ? <Overview api={api} vm={vm} /> : null}
      {view === 'screen' ? <ScreenView api={api} vm={{ namespace, name }} /> : null}
      {view === 'log' ? <LogView api={api} vm={{ namespace, name }} /> : null}
      {view === 'console' ? <ConsoleView api={api} vm={{ namespace, name }} /> : null}
    </div>
  );
}

function Overview({ api, vm }: { readonly api: Api; readonly vm: VM }) {
  return (
    <>
      <Diagnosis vm={vm} />
      <Facts vm={vm} />
      {phaseOf(vm) === 'Running' ? <Commands vm={vm} /> : null}
      <VMSnapshots api={api} vm={vm} />
      <Conditions vm={vm} />
      <Events api={api} vm={vm} />
      <VMObject api={api} vm={vm} />
    </>
  );
}

const VIEWS = [
  [undefined, 'Overview'],
  ['screen', 'Screen'],
  ['console', 'Console'],
  ['log', 'Log'],
] as const;

function Views({ place }: { readonly place: Extract<Place, { page: 'vm' }> }) {
  return (
    <nav class="views" aria-label="Views of the VM">
      {VIEWS.map(([view, text]) => (
        <a
          key={text}
          href={formatPlace({ ...place, view })}
          {...(place.view === view && { 'aria-current': 'page' })}
        >
          {text}
        </a>
      ))}
    </nav>
  );
}

function Diagnosis({ vm }: { readonly vm: VM }) {
  const { ok, message, meaning, outlook, todo } = diagnose({ vm });
  return (
    <section class={ok ? 'why-it calm' : 'why-it'} aria-label="State">
      <p>{message}.</p>
      {meaning === undefined ? null : <p>{meaning}.</p>}
      {outlook === undefined ? null : <p>{outlook}.</p>}
      {todo.length === 0 ? null : (
        <ul>
          {todo.map((step) => (
            <li key={step}>{step}.</li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Facts({ vm }: { readonly vm: VM }) {
  const { metadata, spec, status = {} } = vm;
  const { cpu = spec.cpu, memory = spec.memory, diskSize = spec.diskSize } = status.resources ?? {};
  const ports = status.endpoints?.map(({ name, hostPort }) => `${name} ${hostPort}`);
  const labels = Object.entries(metadata.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  const facts: readonly [string, string | number | undefined][] = [
    ['Namespace', metadata.namespace],
    ['Host', status.nodeName],
    ['Image', imageOf(vm)],
    ['Processors', cpu],
    ['Memory', memory],
    ['Disk', diskSize],
    ['Address', status.hostAddress],
    ['Ports', ports?.join(', ')],
    ['Owner', ownerOf(vm)],
    ['Age', age(metadata.creationTimestamp)],
    ['Labels', labels.join(', ')],
  ];
  return (
    <section aria-labelledby="facts-title">
      <h2 id="facts-title">Machine</h2>
      <dl class="facts">
        {facts
          .filter(([, value]) => value !== undefined && value !== '')
          .map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
      </dl>
    </section>
  );
}

/** Shows commands for what only a program on the computer of the user can do. */
function Commands({ vm: { metadata, status } }: { readonly vm: VM }) {
  const { namespace = '', name } = metadata;
  const hasAgent = status?.conditions?.some(
    ({ type, status: holds }) => type === 'GuestAgentConnected' && holds === 'True',
  );
  const commands: readonly (readonly [string, string])[] = [
    ['Copy a file, if the guest has SFTP', `berth vm scp -n ${namespace} -u USER ${name}:/PATH/FILE FILE`],
    ['Copy a file by SSH alone', `berth vm ssh -n ${namespace} -u USER ${name} -- cat /PATH/FILE > FILE`],
    ...(hasAgent === true
      ? [
          [
            'Copy a file by the guest agent, less than 4 MiB',
            `berth vm exec -n ${namespace} ${name} -- cat /PATH/FILE > FILE`,
          ] as const,
        ]
      : []),
    ['Log in', `berth vm ssh -n ${namespace} -u USER ${name}`],
  ];
  return (
    <section aria-labelledby="commands-title">
      <h2 id="commands-title">In your terminal</h2>
      <dl class="hints commands">
        {commands.map(([text, command]) => (
          <Fragment key={text}>
            <dt>{text}</dt>
            <dd>
              <code>{command}</code>
            </dd>
          </Fragment>
        ))}
      </dl>
    </section>
  );
}

function Conditions({ vm }: { readonly vm: VM }) {
  const conditions = vm.status?.conditions ?? [];
  return (
    <section aria-labelledby="conditions-title">
      <h2 id="conditions-title">Conditions</h2>
      {conditions.length === 0 ? (
        <p class="calm">The operator has not reported on this VM yet.</p>
      ) : (
        <table class="facts-table">
          <thead>
            <tr>
              <th scope="col">Condition</th>
              <th scope="col">Status</th>
              <th scope="col">Reason</th>
              <th scope="col">Message</th>
              <th scope="col">Since</th>
            </tr>
          </thead>
          <tbody>
            {conditions.map(({ type, status, reason, message, lastTransitionTime }) => (
              <tr key={type}>
                <th scope="row">{type}</th>
                <td>{status}</td>
                <td>{reason}</td>
                <td class="message">{message}</td>
                <td>{age(lastTransitionTime)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

/** Interval in milliseconds between two reads of the Events. */
const EVENTS_MILLISECONDS = 5_000;
/** Largest number of Events on the page. */
const EVENTS_SHOWN = 50;

function Events({ api, vm }: { readonly api: Api; readonly vm: VM }) {
  const { namespace = '', name } = vm.metadata;
  const [events, setEvents] = useState<readonly Event[]>();
  const [error, setError] = useState<string>();
  useEffect(() => {
    const end = new AbortController();
    const path = `/console/objects/namespaces/${encodeURIComponent(namespace)}/events?regarding=${encodeURIComponent(name)}`;
    const read = async () => {
      for (; !end.signal.aborted; await pauseFor(EVENTS_MILLISECONDS, end.signal)) {
        await whenShown(end.signal);
        try {
          setEvents((await api.get<{ items: Event[] }>(path, end.signal)).items);
          setError(undefined);
        } catch (reason) {
          setError(reason instanceof Error ? reason.message : String(reason));
        }
      }
    };
    void read();
    return () => end.abort();
  }, [api, namespace, name]);
  const own = ownEvents(events ?? [], vm)
    .toSorted((one, other) => Date.parse(timeOf(other)) - Date.parse(timeOf(one)))
    .slice(0, EVENTS_SHOWN);
  return (
    <section aria-labelledby="events-title">
      <h2 id="events-title">Events</h2>
      {error === undefined ? null : <p class="stale">The Events could not be read: {error}</p>}
      {events !== undefined && own.length === 0 ? <p class="calm">No Events in the last hour.</p> : null}
      {own.length === 0 ? null : (
        <table class="facts-table">
          <thead>
            <tr>
              <th scope="col">Age</th>
              <th scope="col">Reason</th>
              <th scope="col">Message</th>
            </tr>
          </thead>
          <tbody>
            {own.map((event) => (
              <tr key={event.metadata.uid} class={event.type === 'Warning' ? 'warning' : ''}>
                <td>{age(timeOf(event))}</td>
                <td>{event.reason}</td>
                <td class="message">
                  {event.note}
                  {(event.series?.count ?? 1) > 1 ? ` (${event.series?.count} times)` : ''}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

/** Commands for a VM in each state, with the texts of their buttons. */
const COMMANDS: ReadonlyMap<string, readonly [Command, string][]> = new Map([
  [
    'Running',
    [
      ['stop', 'Stop'],
      ['suspend', 'Suspend'],
    ],
  ],
  ['Stopped', [['start', 'Start']]],
  [
    'Suspended',
    [
      ['resume', 'Resume'],
      ['stop', 'Stop'],
    ],
  ],
]);

function Actions({ api, vm }: { readonly api: Api; readonly vm: VM }) {
  const { namespace = '', name } = vm.metadata;
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/vms/${encodeURIComponent(name)}`;
  const [outcome, setOutcome] = useState<{ readonly isError: boolean; readonly text: string }>();
  const question = useRef<HTMLDialogElement>(null);
  const act = async (text: string, work: () => Promise<void>) => {
    try {
      await work();
      setOutcome({ isError: false, text });
    } catch (error) {
      setOutcome({ isError: true, text: error instanceof Error ? error.message : String(error) });
    }
  };
  const send = (command: Command, label: string) =>
    void act(`${label} was requested`, async () => await api.send('POST', `${path}/exec/${command}`));
  const remove = () => {
    question.current?.close();
    void act('The deletion was requested', async () => await api.send('DELETE', path));
  };
  const phase = phaseOf(vm);
  return (
    <div class="actions">
      {(COMMANDS.get(phase) ?? []).map(([command, label]) => (
        <button key={command} type="button" onClick={() => send(command, label)}>
          {label}
        </button>
      ))}
      {phase === 'Terminating' ? null : (
        <button type="button" class="danger" onClick={() => question.current?.showModal()}>
          Delete…
        </button>
      )}
      <p class={outcome?.isError === true ? 'error' : 'calm'} role="status">
        {outcome?.text}
      </p>
      <dialog ref={question} aria-labelledby="delete-title">
        <h2 id="delete-title">Delete VM {name}?</h2>
        <p>The machine ends, and its disk is lost. Save the disk first if you need it.</p>
        <div class="actions">
          <button type="button" onClick={() => question.current?.close()}>
            Keep it
          </button>
          <button type="button" class="danger" onClick={remove}>
            Delete
          </button>
        </div>
      </dialog>
    </div>
  );
}
