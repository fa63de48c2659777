import { describe, expect, it } from 'vitest';
import type { SnapshotReport } from '../../api/v1alpha1/machine.ts';
import {
  MACHINE_CONDITION,
  SNAPSHOT_LIMIT,
  SNAPSHOTS_CONDITION,
  VM_UID_LABEL,
} from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMSnapshot, VMSnapshotStatus } from '../../api/v1alpha1/vmsnapshot.ts';
import type { Pod } from '../../kube/core.ts';
import { conditionIn } from '../objects/conditions.ts';
import { type ObservedSnapshot, snapshotStatus } from './status.ts';

const NOW = Date.parse('2030-01-01T00:00:00Z');
const TAKEN = {
  uid: 's',
  takenAt: '2029-12-31T23:59:59Z',
  consistency: 'FileSystem',
  sizeBytes: 1024 ** 3,
} as const;

function snapshot(status: VMSnapshotStatus = {}, name = 's', uid = name): VMSnapshot {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VMSnapshot',
    metadata: {
      name,
      namespace: 'a',
      uid,
      generation: 1,
      creationTimestamp: `2029-01-01T00:00:0${name.length}Z`,
    },
    spec: { vmName: 'x' },
    status,
  };
}

const VM_X = {
  metadata: { name: 'x', namespace: 'a', uid: 'vm' },
  spec: {},
  status: { phase: 'Running' },
} as VM;

function podOf(uid: string, ...reports: SnapshotReport[]): Pod {
  const conditions = [{ type: SNAPSHOTS_CONDITION, status: 'True', message: JSON.stringify(reports) }];
  return {
    metadata: { name: 'x', labels: { [VM_UID_LABEL]: uid } },
    spec: {},
    status: { conditions },
  } as unknown as Pod;
}

function observed(change: Partial<ObservedSnapshot> = {}): ObservedSnapshot {
  return { snapshot: snapshot(), siblings: [], vm: VM_X, pod: undefined, now: NOW, ...change };
}

/** Returns the phase of a snapshot, and the reason of its condition Ready. */
function phaseOf(change: Partial<ObservedSnapshot>) {
  const { phase, conditions } = snapshotStatus(observed(change));
  return [phase, conditionIn({ conditions }, 'Ready')?.reason];
}

describe('a snapshot', () => {
  it('waits for its VM, then for the host, and is Ready with what the host reports', () => {
    expect(phaseOf({ vm: undefined })).toEqual(['Pending', 'VMNotFound']);
    const saving = snapshotStatus(observed());
    expect(saving).toMatchObject({ phase: 'Saving', vmUID: 'vm', observedGeneration: 1 });
    expect(conditionIn(saving, 'Reconciling')).toMatchObject({ status: 'True', reason: 'SnapshotSaving' });
    const ready = snapshotStatus(observed({ snapshot: snapshot(saving), pod: podOf('vm', TAKEN) }));
    expect(ready).toMatchObject({
      phase: 'Ready',
      takenAt: TAKEN.takenAt,
      consistency: 'FileSystem',
      size: '1Gi',
    });
    expect(ready.conditions).toMatchObject([{ type: 'Ready', status: 'True', reason: 'SnapshotTaken' }]);
  });

  it('does not take the report of another VM of the same name, and does not get another VM', () => {
    const stored = { vmUID: 'earlier' };
    expect(phaseOf({ snapshot: snapshot(stored), pod: podOf('vm', TAKEN) })).toEqual([
      'Failed',
      'VMNotFound',
    ]);
    const taken = { ...stored, takenAt: TAKEN.takenAt };
    expect(phaseOf({ snapshot: snapshot(taken) })).toEqual(['Failed', 'VMNotFound']);
    expect(phaseOf({ pod: podOf('earlier', TAKEN) })).toEqual(['Saving', 'SnapshotSaving']);
  });

  it('that the host could not take, or whose VM has failed, has failed for good', () => {
    const failure = { reason: 'NoDisk', message: 'The machine has no disk' };
    const failed = snapshotStatus(observed({ pod: podOf('vm', { uid: 's', failure }) }));
    expect(failed).toMatchObject({ phase: 'Failed', failure: { ...failure, time: '2030-01-01T00:00:00Z' } });
    expect(conditionIn(failed, 'Stalled')).toMatchObject({ status: 'True', reason: 'NoDisk' });
    const later = snapshotStatus(observed({ snapshot: snapshot(failed), pod: podOf('vm', TAKEN) }));
    expect(later).toEqual(failed);
    const lost = { ...VM_X, status: { failure: { reason: 'HostLost', message: '', time: '' } } } as VM;
    expect(phaseOf({ vm: lost })).toEqual(['Failed', 'SnapshotNotTaken']);
  });

  it.each(['{', '[{"uid":7}]', '[]', 'null', JSON.stringify([{ ...TAKEN, takenAt: 'soon' }])])(
    'is not Ready after the report %s',
    (message) => {
      const conditions = [{ type: SNAPSHOTS_CONDITION, status: 'True', message }];
      const pod = { ...podOf('vm'), status: { conditions } } as Pod;
      expect(phaseOf({ pod })).toEqual(['Saving', 'SnapshotSaving']);
    },
  );

  it('shows the memory that its host has kept, and says if it was to have memory and has none', () => {
    const wanted = snapshot({ vmUID: 'vm' });
    const asked = { ...wanted, spec: { ...wanted.spec, memory: true } };
    const memory = { cpu: 2, bytes: 2 ** 30 };
    const kept = snapshotStatus(observed({ snapshot: asked, pod: podOf('vm', { ...TAKEN, memory }) }));
    expect(kept).toMatchObject({ phase: 'Ready', memory: { cpu: 2, size: '1Gi' } });
    expect(conditionIn(kept, 'Ready')?.message).toBe('The host has the snapshot');
    const without = snapshotStatus(observed({ snapshot: asked, pod: podOf('vm', TAKEN) }));
    expect(conditionIn(without, 'Ready')).toMatchObject({
      status: 'True',
      message: 'The snapshot has no memory. A VM that is reset to it boots from its disk',
    });
  });

  const taken = snapshot({ vmUID: 'vm', takenAt: TAKEN.takenAt });
  const failed = (reason: string): VM => ({
    ...VM_X,
    status: { failure: { reason, message: '', time: '' } },
  });
  const silent: Pod = { ...podOf('vm'), status: {} };
  const machineOnly: NonNullable<Pod['status']> = {
    conditions: [{ type: MACHINE_CONDITION, status: 'True', message: '{}' }],
  };

  it.each<[string, Partial<ObservedSnapshot>]>([
    ['whose host still reports it', { pod: podOf('vm', TAKEN) }],
    ['whose host has not reported yet', { pod: silent }],
    ['whose Pod is about to be made again', {}],
    ['whose host sends no list', { pod: { ...silent, status: { conditions: [] } } }],
    ['of a VM that failed and keeps its disk', { vm: failed('Crashed'), pod: podOf('vm', TAKEN) }],
  ])('%s stays Ready', (_, change) => {
    expect(phaseOf({ snapshot: taken, ...change })).toEqual(['Ready', 'SnapshotTaken']);
  });

  it.each<[string, Partial<ObservedSnapshot>]>([
    ['that the present machine does not have', { pod: podOf('vm') }],
    ['of which the report of the machine tells nothing', { pod: { ...silent, status: machineOnly } }],
    [
      'that the present machine took at another time',
      { pod: podOf('vm', { ...TAKEN, takenAt: '2030-01-01T00:00:00Z' }) },
    ],
    ['of a VM that has failed and has no machine', { vm: failed('PodDeleted') }],
    ['of a VM whose host is lost', { vm: failed('HostLost'), pod: podOf('vm', TAKEN) }],
  ])('%s is lost, and says so', (_, change) => {
    const status = snapshotStatus(observed({ snapshot: taken, ...change }));
    expect(status).toMatchObject({ phase: 'Failed', takenAt: TAKEN.takenAt, failure: undefined });
    const ready = conditionIn(status, 'Ready');
    expect(ready).toMatchObject({ status: 'False', reason: 'SnapshotLost' });
    expect(ready?.message).toMatch(/^The present machine of VM x|^VM x has failed with/);
    // The host can come back with the machine.
    const back = snapshotStatus(observed({ snapshot: snapshot(status), pod: podOf('vm', TAKEN) }));
    expect(back.phase).toBe('Ready');
  });

  it('that is one too many has failed, and says how many a VM can have', () => {
    const siblings = Array.from({ length: SNAPSHOT_LIMIT }, (_, index) =>
      snapshot({ vmUID: 'vm', takenAt: TAKEN.takenAt }, `t${index}`),
    );
    expect(phaseOf({ siblings })).toEqual(['Failed', 'TooManySnapshots']);
    expect(phaseOf({ siblings: siblings.slice(1) })).toEqual(['Saving', 'SnapshotSaving']);
    const ofEarlier = siblings.map((one) => ({ ...one, status: { ...one.status, vmUID: 'earlier' } }));
    expect(phaseOf({ siblings: ofEarlier })).toEqual(['Saving', 'SnapshotSaving']);
  });
});
