/** The object of a VM as YAML, the fields of it that can be changed, and its snapshots. */
import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import type { VMSnapshotItem } from '../../api/http/vmsnapshot.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { age } from '../../base/age.ts';
import type { Api } from '../data/api.ts';
import { messageOf } from '../data/forms.ts';
import { pauseFor, whenShown } from '../data/waits.ts';
import { changesOf, type FormField, type Texts, textsOf } from '../model/form.ts';
import { formatYAML } from '../model/yaml.ts';
import { deployAddress } from './deploypage.tsx';
import { Dialog } from './dialog.tsx';
import { SchemaForm, WithFields } from './form.tsx';
import { SnapshotButtons } from './objectactions.tsx';
import { type ActionOutcome, OutcomeLine } from './outcome.tsx';
import { Phase } from './phase.tsx';

interface VMProps {
  readonly api: Api;
  readonly vm: VM;
}

/** Largest number of lines of YAML in the page. */
const YAML_LINES = 2_000;

export function VMObject({ api, vm }: VMProps) {
  const [isChanging, setChanging] = useState(false);
  const [isOpen, setOpen] = useState(false);
  const { namespace = '', name } = vm.metadata;
  return (
    <section aria-labelledby="object-title">
      <h2 id="object-title">Object</h2>
      <div class="actions">
        <button type="button" onClick={() => setChanging(true)}>
          Change…
        </button>
        <a href={deployAddress(namespace, name)}>Deploy one like it</a>
      </div>
      <details class="yaml" onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
        <summary>YAML</summary>
        {isOpen ? <YAML value={vm} /> : null}
      </details>
      {isChanging ? <ChangeDialog api={api} vm={vm} onClose={() => setChanging(false)} /> : null}
    </section>
  );
}

function YAML({ value }: { readonly value: object }) {
  const lines = formatYAML(value).trimEnd().split('\n');
  const rest = lines.length - YAML_LINES;
  return (
    <>
      <pre tabIndex={0} aria-label="YAML of the object">
        {lines.slice(0, YAML_LINES).join('\n')}
      </pre>
      {rest > 0 ? <p class="calm">{rest} more lines are not shown.</p> : null}
    </>
  );
}

/** Shows the fields that can be changed. The VM may change meanwhile, and the server then refuses the change. */
function ChangeDialog({ api, vm, onClose }: VMProps & { readonly onClose: () => void }) {
  const [{ metadata, spec }] = useState(vm);
  const { namespace = '', name, generation } = metadata;
  const path = `/console/objects/namespaces/${encodeURIComponent(namespace)}/vms/${encodeURIComponent(name)}`;
  const change = async (patch: Record<string, unknown>) => {
    await api.send('PATCH', path, { generation, ...patch });
    onClose();
  };
  const read = (fields: readonly FormField[], before: Texts) => (texts: Texts) => {
    const { mistakes, ...patch } = changesOf(fields, before, texts);
    return { values: patch, mistakes };
  };
  return (
    <Dialog title={`Change VM ${name}`} onClose={onClose}>
      <p>Processors, memory and disk change at the next start. Other fields of a VM never change.</p>
      <WithFields api={api} form="change">
        {(fields) => {
          const before = textsOf(fields, spec);
          return (
            <SchemaForm
              fields={fields}
              initial={before}
              read={read(fields, before)}
              submit="Change"
              busy="Changing…"
              onSubmit={change}
              onCancel={onClose}
            />
          );
        }}
      </WithFields>
    </Dialog>
  );
}

/** Interval in milliseconds between two reads of the snapshots. */
const SNAPSHOTS_MILLISECONDS = 5_000;

export function VMSnapshots({ api, vm }: VMProps) {
  const { namespace = '', name } = vm.metadata;
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/vmsnapshots`;
  const { snapshots, error, reload } = useSnapshots(api, path, name);
  const [dialog, show] = useState<ComponentChildren>(null);
  const [outcome, tell] = useState<ActionOutcome>();
  const close = () => show(null);
  const take = async (values: Record<string, unknown>) => {
    await api.send('POST', path, { ...values, vm: name });
    close();
    reload();
  };
  const tools = {
    api,
    show,
    tell: (text: ActionOutcome) => {
      tell(text);
      reload();
    },
  };
  return (
    <section aria-labelledby="snapshots-title">
      <h2 id="snapshots-title">Snapshots</h2>
      {error === undefined ? null : <p class="stale">The snapshots could not be read: {error}</p>}
      <OutcomeLine outcome={outcome} />
      {snapshots?.length === 0 ? (
        <p class="calm">None. A snapshot keeps the disk, and can keep the memory.</p>
      ) : null}
      {snapshots === undefined || snapshots.length === 0 ? null : (
        <SnapshotTable namespace={namespace} snapshots={snapshots} tools={tools} />
      )}
      <button
        type="button"
        onClick={() => show(<SnapshotDialog api={api} name={name} onTake={take} onClose={close} />)}
      >
        Take a snapshot…
      </button>
      {dialog}
    </section>
  );
}

interface SnapshotTableProps {
  readonly namespace: string;
  readonly snapshots: readonly VMSnapshotItem[];
  readonly tools: Parameters<typeof SnapshotButtons>[0]['tools'];
}

function SnapshotTable({ namespace, snapshots, tools }: SnapshotTableProps) {
  return (
    <table class="facts-table">
      <thead>
        <tr>
          <th scope="col">Name</th>
          <th scope="col">Phase</th>
          <th scope="col">Taken</th>
          <th scope="col">Disk</th>
          <th scope="col">Memory</th>
          <th scope="col">Message</th>
          <th scope="col">Actions</th>
        </tr>
      </thead>
      <tbody>
        {snapshots.map(({ name, vm, status, takenAt, storageSize, memorySize, message }) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>
              <Phase phase={status} />
            </td>
            <td>{age(takenAt)}</td>
            <td>{storageSize}</td>
            <td>{memorySize}</td>
            <td class="message">{message}</td>
            <td class="row-actions">
              <SnapshotButtons of={{ namespace, name, vm, phase: status }} tools={tools} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

interface SnapshotDialogProps {
  readonly api: Api;
  /** Name of the VM. */
  readonly name: string;
  readonly onTake: (values: Record<string, unknown>) => Promise<void>;
  readonly onClose: () => void;
}

function SnapshotDialog({ api, name, onTake, onClose }: SnapshotDialogProps) {
  return (
    <Dialog title={`Snapshot of VM ${name}`} onClose={onClose}>
      <WithFields api={api} form="snapshot">
        {(fields) => (
          <SchemaForm
            fields={fields.filter(({ path }) => path !== 'vm')}
            submit="Take"
            busy="Taking…"
            onSubmit={onTake}
            onCancel={onClose}
          />
        )}
      </WithFields>
    </Dialog>
  );
}

/** Reads the snapshots of the VM again and again. */
function useSnapshots(
  api: Api,
  path: string,
  name: string,
): {
  readonly snapshots: readonly VMSnapshotItem[] | undefined;
  readonly error: string | undefined;
  readonly reload: () => void;
} {
  const [snapshots, setSnapshots] = useState<readonly VMSnapshotItem[]>();
  const [error, setError] = useState<string>();
  const [round, setRound] = useState(0);
  useEffect(() => {
    const end = new AbortController();
    const read = async () => {
      for (; !end.signal.aborted; await pauseFor(SNAPSHOTS_MILLISECONDS, end.signal)) {
        await whenShown(end.signal);
        try {
          const { items } = await api.get<{ items: VMSnapshotItem[] }>(path, end.signal);
          setSnapshots(items.filter(({ vm }) => vm === name));
          setError(undefined);
        } catch (reason) {
          setError(end.signal.aborted ? undefined : messageOf(reason));
        }
      }
    };
    void read();
    return () => end.abort();
  }, [api, path, name, round]);
  return { snapshots, error, reload: () => setRound((count) => count + 1) };
}
