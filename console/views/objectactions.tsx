/** Buttons of single objects in their lists: claims and sizes of pools, power of servers, and snapshots. */
import type { ComponentChildren } from 'preact';
import type { ClaimedVM } from '../../api/http/vmpool.ts';
import type { PowerAction, Server } from '../../api/v1alpha1/server.ts';
import type { VMPool } from '../../api/v1alpha1/vmpool.ts';
import type { Api } from '../data/api.ts';
import { messageOf } from '../data/forms.ts';
import { textsOf } from '../model/form.ts';
import { formatPlace } from '../model/place.ts';
import { Confirm, Dialog } from './dialog.tsx';
import { SchemaForm, WithFields } from './form.tsx';
import type { ActionOutcome } from './outcome.tsx';

/** What the buttons of an object need from the page. */
export interface ObjectTools {
  readonly api: Api;
  /** Shows a dialog, or closes the present one. */
  readonly show: (dialog: ComponentChildren) => void;
  /** Tells the outcome of an action. */
  readonly tell: (outcome: ActionOutcome) => void;
}

/** Does the work, and tells its outcome. */
async function act(
  { tell }: Pick<ObjectTools, 'tell'>,
  text: string,
  work: () => Promise<unknown>,
): Promise<void> {
  try {
    await work();
    tell({ isError: false, text });
  } catch (error) {
    tell({ isError: true, text: messageOf(error) });
  }
}

/** Returns the path of the pool below this path. */
function pathOf({ metadata: { namespace = '', name } }: VMPool, before: string): string {
  return `${before}/namespaces/${encodeURIComponent(namespace)}/vmpools/${encodeURIComponent(name)}`;
}

interface PoolProps {
  readonly pool: VMPool;
  readonly tools: ObjectTools;
}

export function PoolButtons({ pool, tools }: PoolProps) {
  const { name } = pool.metadata;
  const close = () => tools.show(null);
  return (
    <>
      {pool.spec.mode === 'OneShot' ? null : (
        <button
          type="button"
          class="small"
          aria-label={`Claim a VM of pool ${name}`}
          onClick={() => tools.show(<ClaimDialog pool={pool} api={tools.api} onClose={close} />)}
        >
          Claim…
        </button>
      )}
      <button
        type="button"
        class="small"
        aria-label={`Scale pool ${name}`}
        onClick={() => tools.show(<ScaleDialog pool={pool} tools={tools} onClose={close} />)}
      >
        Scale…
      </button>
    </>
  );
}

interface ClaimProps {
  readonly pool: VMPool;
  readonly api: Api;
  readonly onClose: () => void;
}

function ClaimDialog({ pool, api, onClose }: ClaimProps) {
  const { namespace = '', name } = pool.metadata;
  const path = `${pathOf(pool, '/api/v1')}/claim`;
  const claim = async ({ whenEmpty, ...body }: Record<string, unknown>) => {
    const query = typeof whenEmpty === 'string' ? `?whenEmpty=${encodeURIComponent(whenEmpty)}` : '';
    const vm = await api.send<ClaimedVM>('POST', path + query, body);
    onClose();
    location.hash = formatPlace({ page: 'vm', namespace, name: vm.name });
  };
  return (
    <Dialog title={`Claim a VM of pool ${name}`} onClose={onClose}>
      <p>The VM then belongs to you, and never returns to the pool.</p>
      <WithFields api={api} form="claim">
        {(fields) => (
          <SchemaForm
            fields={fields}
            submit="Claim"
            busy="Waiting for a VM…"
            onSubmit={claim}
            onCancel={onClose}
          />
        )}
      </WithFields>
    </Dialog>
  );
}

function ScaleDialog({ pool, tools, onClose }: PoolProps & { readonly onClose: () => void }) {
  const { name } = pool.metadata;
  const path = pathOf(pool, '/console/objects');
  const scale = async (change: Record<string, unknown>) => {
    await tools.api.send('PATCH', path, change);
    onClose();
    tools.tell({ isError: false, text: `Pool ${name} keeps ${String(change['replicas'])} VMs from now on` });
  };
  return (
    <Dialog title={`Scale pool ${name}`} onClose={onClose}>
      <WithFields api={tools.api} form="scale">
        {(fields) => (
          <SchemaForm
            fields={fields}
            initial={textsOf(fields, pool.spec)}
            submit="Scale"
            busy="Scaling…"
            onSubmit={scale}
            onCancel={onClose}
          />
        )}
      </WithFields>
    </Dialog>
  );
}

/** What each button does to a server. */
const POWER: readonly (readonly [PowerAction, string])[] = [
  ['On', 'Switch on'],
  ['Off', 'Switch off'],
  ['Reboot', 'Reboot'],
];

interface ServerProps {
  readonly server: Server;
  readonly tools: ObjectTools;
}

export function ServerButtons({ server, tools }: ServerProps) {
  const { name } = server.metadata;
  const request = (action: PowerAction) =>
    void act(tools, `${action} was requested for server ${name}`, async () => {
      await tools.api.send('PATCH', `/console/objects/servers/${encodeURIComponent(name)}`, { action });
    });
  const ask = (action: PowerAction, verb: string) =>
    tools.show(
      <Confirm
        title={`${verb} server ${name}?`}
        act={verb}
        onAct={() => request(action)}
        onClose={() => tools.show(null)}
      >
        <p>{OCCUPIED[server.spec.policy?.whenOccupied ?? 'Refuse']}</p>
      </Confirm>,
    );
  return (
    <>
      {POWER.map(([action, verb]) => (
        <button
          key={action}
          type="button"
          class="small"
          aria-label={`${verb} server ${name}`}
          onClick={() => (action === 'On' ? request(action) : ask(action, verb))}
        >
          {action === 'On' ? action : `${action}…`}
        </button>
      ))}
    </>
  );
}

/** What happens to the VMs on a server, by the policy of the server. */
const OCCUPIED = {
  Refuse: 'While VMs run on it, the action is refused.',
  Wait: 'While VMs run on it, the action waits until they have ended.',
  Force: 'VMs that run on it are stopped without warning.',
} as const;

/** A snapshot, as objects and items of the HTTP API have it. */
interface SnapshotFacts {
  readonly namespace: string;
  readonly name: string;
  /** Name of its VM. */
  readonly vm: string;
  readonly phase: string | undefined;
}

interface SnapshotProps {
  readonly of: SnapshotFacts;
  readonly tools: ObjectTools;
}

export function SnapshotButtons({ of: { namespace, name, vm: vmName, phase }, tools }: SnapshotProps) {
  const scope = `/api/v1/namespaces/${encodeURIComponent(namespace)}`;
  const vm = `${scope}/vms/${encodeURIComponent(vmName)}`;
  const own = `${scope}/vmsnapshots/${encodeURIComponent(name)}`;
  const close = () => tools.show(null);
  const revert = () =>
    void act(tools, `The revert of VM ${vmName} to ${name} was requested`, async () => {
      await tools.api.send('POST', `${vm}/exec`, { command: 'revert', snapshot: name });
    });
  const remove = () =>
    void act(tools, `The deletion of snapshot ${name} was requested`, async () => {
      await tools.api.send('DELETE', own);
    });
  return (
    <>
      <button
        type="button"
        class="small"
        aria-label={`Revert VM ${vmName} to ${name}`}
        disabled={phase !== 'Ready'}
        onClick={() =>
          tools.show(
            <Confirm title={`Revert VM ${vmName} to ${name}?`} act="Revert" onAct={revert} onClose={close}>
              <p>All that the VM has written since then is lost.</p>
            </Confirm>,
          )
        }
      >
        Revert…
      </button>
      <button
        type="button"
        class="small danger"
        aria-label={`Delete snapshot ${name}`}
        onClick={() =>
          tools.show(
            <Confirm title={`Delete snapshot ${name}?`} act="Delete" onAct={remove} onClose={close}>
              <p>The VM keeps its disk, and can no longer be reset to this snapshot.</p>
            </Confirm>,
          )
        }
      >
        Delete…
      </button>
    </>
  );
}
