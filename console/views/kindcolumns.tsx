/** Columns of the lists of objects. Most kinds have those of `kubectl get`, and some have columns and buttons made for them. */
import type { ComponentChildren } from 'preact';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { shortImageName } from '../../api/v1alpha1/reference.ts';
import type { RunnerSet } from '../../api/v1alpha1/runnerset.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import type { VMPool } from '../../api/v1alpha1/vmpool.ts';
import type { VMSnapshot } from '../../api/v1alpha1/vmsnapshot.ts';
import { age } from '../../base/age.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { cellText, type KindTable, shownColumns } from '../model/columns.ts';
import { cachedImageOf, lastActionOf, rolloutOf, runnerCounts } from '../model/objects.ts';
import { formatPlace } from '../model/place.ts';
import { Meter } from './meter.tsx';
import { type ObjectTools, PoolButtons, ServerButtons, SnapshotButtons } from './objectactions.tsx';
import { Phase } from './phase.tsx';

export interface ShownColumn {
  readonly name: string;
  /** Class of the column, which has its width. */
  readonly style: 'string' | 'integer' | 'date' | 'message' | 'meter' | 'buttons';
  readonly text: (object: KubeObject) => string;
  /** What the cell shows. The default is the text. */
  readonly view?: (object: KubeObject) => ComponentChildren;
}

/** Column of a kind whose objects have the type T. */
interface ColumnOf<T> {
  readonly name: string;
  readonly style?: ShownColumn['style'];
  readonly text: (object: T) => string | number | undefined;
  readonly view?: (object: T) => ComponentChildren;
}

/** Returns the columns with the types of all objects. The list of a kind has only objects of this kind. */
function columnsOf<T extends KubeObject>(...columns: readonly ColumnOf<T>[]): ShownColumn[] {
  return columns.map(({ name, style = 'string', text, view }) => ({
    name,
    style,
    text: (object) => String(text(object as T) ?? ''),
    ...(view !== undefined && { view: (object) => view(object as T) }),
  }));
}

/** Returns the message of the condition Ready while it is not True. */
function messageOf({ status }: KubeObject & { status?: unknown }): string | undefined {
  const { conditions = [] } = (status ?? {}) as {
    conditions?: { type: string; status: string; message?: string }[];
  };
  const ready = conditions.find(({ type }) => type === 'Ready');
  return ready?.status === 'True' ? undefined : ready?.message;
}

const MESSAGE: ColumnOf<KubeObject> = { name: 'Message', style: 'message', text: messageOf };

/** Returns the columns of a kind beside the name and the age. */
export function kindColumns(table: KindTable, tools: ObjectTools): ShownColumn[] {
  const own = OWN_COLUMNS[table.plural]?.(tools);
  return (
    own ??
    shownColumns(table).map((column) => ({
      name: column.name,
      style: column.name === 'Message' ? 'message' : column.type,
      text: (object) => cellText(object, column),
    }))
  );
}

const OWN_COLUMNS: Readonly<Record<string, (tools: ObjectTools) => ShownColumn[]>> = {
  vmpools: (tools) =>
    columnsOf<VMPool>(
      {
        name: 'Ready',
        style: 'meter',
        text: ({ spec, status }) => `${status?.readyReplicas ?? 0} of ${spec.replicas}`,
        view: ({ spec, status }) => (
          <Meter value={status?.readyReplicas ?? 0} of={spec.replicas} what="VMs are ready" />
        ),
      },
      { name: 'Claimed', style: 'integer', text: ({ status }) => status?.claimedTotal ?? 0 },
      { name: 'Stale', style: 'integer', text: ({ status }) => status?.staleReplicas ?? 0 },
      { name: 'Roll-out', text: rolloutOf },
      { name: 'Mode', style: 'date', text: ({ spec }) => spec.mode ?? 'Claim' },
      {
        name: 'Image',
        text: ({ spec: { template } }) => templateSource(template),
      },
      MESSAGE,
      {
        name: 'Actions',
        style: 'buttons',
        text: () => '',
        view: (pool) => <PoolButtons pool={pool} tools={tools} />,
      },
    ),
  images: () =>
    columnsOf<Image>(
      {
        name: 'Phase',
        text: ({ status }) => status?.phase ?? 'Pending',
        view: ({ status }) => <Phase phase={status?.phase ?? 'Pending'} />,
      },
      {
        name: 'Progress',
        style: 'meter',
        text: ({ status }) => (isDone(status) ? '' : `${status?.progressPercent ?? 0} %`),
        view: ({ status }) =>
          isDone(status) ? (
            ''
          ) : (
            <Meter value={status?.progressPercent ?? 0} of={100} unit="%" what="per cent" />
          ),
      },
      { name: 'Size', style: 'date', text: ({ status }) => status?.size },
      { name: 'Stored', style: 'date', text: ({ status }) => status?.storageSize },
      { name: 'Source', text: ({ spec, status }) => status?.origin ?? Object.keys(spec.source)[0] },
      {
        name: 'For',
        style: 'date',
        text: ({ spec }) => [spec.os, spec.architecture].filter(Boolean).join(' '),
      },
      MESSAGE,
    ),
  imagecacheentries: () =>
    columnsOf<ImageCacheEntry>(
      {
        name: 'Image',
        text: cachedImageOf,
      },
      {
        name: 'Hosts',
        style: 'meter',
        text: ({ status }) => `${status?.cached ?? 0} of ${status?.desired ?? 0}`,
        view: ({ status }) => (
          <Meter value={status?.cached ?? 0} of={status?.desired ?? 0} what="hosts have it" />
        ),
      },
      { name: 'Outdated', style: 'integer', text: ({ status }) => status?.outdated ?? 0 },
      { name: 'Failed', style: 'integer', text: ({ status }) => status?.failed ?? 0 },
      { name: 'Failing', text: ({ status }) => status?.failing },
      MESSAGE,
    ),
  runnersets: () =>
    columnsOf<RunnerSet>(
      { name: 'Queued', style: 'integer', text: (set) => runnerCounts(set)?.queued },
      { name: 'Running', style: 'integer', text: (set) => runnerCounts(set)?.running },
      { name: 'Idle', style: 'integer', text: (set) => runnerCounts(set)?.idle },
      { name: 'Capacity', style: 'integer', text: ({ status }) => status?.capacity },
      {
        name: 'VMs',
        style: 'meter',
        text: ({ spec, status }) => `${status?.runners ?? 0} of ${spec.max}`,
        view: ({ spec, status }) => <Meter value={status?.runners ?? 0} of={spec.max} what="VMs" />,
      },
      { name: 'GitHub', text: ({ spec }) => spec.github.url },
      MESSAGE,
    ),
  servers: (tools) =>
    columnsOf<Server>(
      {
        name: 'Power',
        style: 'date',
        text: ({ status }) => status?.power,
        view: ({ status }) => (
          <span class={`phase tone-${POWER_TONES[status?.power ?? ''] ?? 'waits'}`}>
            {status?.power ?? 'Unknown'}
          </span>
        ),
      },
      { name: 'Host', text: ({ spec }) => spec.nodeName },
      { name: 'Last action', text: lastActionOf },
      { name: 'Location', text: ({ spec }) => spec.location },
      MESSAGE,
      {
        name: 'Actions',
        style: 'buttons',
        text: () => '',
        view: (server) => <ServerButtons server={server} tools={tools} />,
      },
    ),
  vmsnapshots: (tools) =>
    columnsOf<VMSnapshot>(
      {
        name: 'VM',
        text: ({ spec }) => spec.vmName,
        view: ({ metadata: { namespace = '' }, spec }) => (
          <a href={formatPlace({ page: 'vm', namespace, name: spec.vmName })}>{spec.vmName}</a>
        ),
      },
      {
        name: 'Phase',
        text: ({ status }) => status?.phase ?? 'Pending',
        view: ({ status }) => <Phase phase={status?.phase ?? 'Pending'} />,
      },
      { name: 'Taken', style: 'date', text: ({ status }) => age(status?.takenAt) },
      { name: 'Disk', style: 'date', text: ({ status }) => status?.storageSize },
      { name: 'Memory', style: 'date', text: ({ status }) => status?.memory?.size },
      MESSAGE,
      {
        name: 'Actions',
        style: 'buttons',
        text: () => '',
        view: ({ metadata: { namespace = '', name }, spec, status }) => (
          <SnapshotButtons of={{ namespace, name, vm: spec.vmName, phase: status?.phase }} tools={tools} />
        ),
      },
    ),
};

/** Returns the short name of the image, or the name of the VM config that has it. */
function templateSource({ spec: { image, configRef } }: VMPool['spec']['template']): string | undefined {
  return image === undefined ? configRef?.name : shortImageName(image);
}

const POWER_TONES: Readonly<Record<string, string>> = {
  On: 'runs',
  Off: 'off',
  Rebooting: 'moves',
  Error: 'failed',
};

function isDone(status: Image['status']): boolean {
  return status?.phase === 'Ready' || status?.phase === 'Failed';
}
