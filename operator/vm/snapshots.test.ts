import { describe, expect, it } from 'vitest';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import { DESIRED_ANNOTATION, SNAPSHOTS_CONDITION, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { VM, VMSpec } from '../../api/v1alpha1/vm.ts';
import type { VMSnapshot, VMSnapshotStatus } from '../../api/v1alpha1/vmsnapshot.ts';
import type { Pod } from '../../kube/core.ts';
import { desiredDisk, missingSnapshots, revertObstacle, type WithSnapshots } from './snapshots.ts';

const [FIRST, SECOND] = ['2026-01-01T00:00:00Z', '2026-01-02T00:00:00Z'];
const TAKEN = { vmUID: 'vm', takenAt: FIRST, phase: 'Ready' };

function snapshot(name: string, status: VMSnapshotStatus, metadata: object = {}): VMSnapshot {
  return {
    metadata: { name, uid: `${name}-uid`, creationTimestamp: FIRST, ...metadata },
    spec: { vmName: 'x' },
    status,
  } as VMSnapshot;
}

function podWith(desired: Partial<Desired>): Pod {
  const text = { powerState: 'Running', restartPolicy: 'Never', cpu: 1, memoryBytes: 1, ...desired };
  return {
    metadata: { annotations: { [DESIRED_ANNOTATION]: JSON.stringify(text) } },
    spec: {},
  } as unknown as Pod;
}

function observed(spec: Partial<VMSpec>, change: Partial<WithSnapshots> = {}): WithSnapshots {
  const vm = { metadata: { name: 'x', uid: 'vm' }, spec, status: {} } as VM;
  return { vm, pod: undefined, snapshots: [], ...change };
}

describe('the snapshots that a host must have', () => {
  it('are those of this VM that are there and have not failed, in the order of their requests', () => {
    const snapshots = [
      snapshot('new', { vmUID: 'vm' }, { creationTimestamp: SECOND }),
      snapshot('old', { vmUID: 'vm' }),
      snapshot('taken', TAKEN, { creationTimestamp: SECOND }),
      snapshot('failed', { vmUID: 'vm', failure: { reason: 'NoDisk', message: '', time: FIRST } }),
      snapshot('leaving', TAKEN, { deletionTimestamp: FIRST }),
      snapshot('another', { ...TAKEN, vmUID: 'earlier' }),
      snapshot('unseen', {}),
    ];
    const names = desiredDisk(observed({}, { snapshots })).snapshots?.map(({ name }) => name);
    expect(names).toEqual(['taken', 'old', 'new']);
  });

  it('say whether the memory is kept, too', () => {
    const plain = snapshot('plain', TAKEN);
    const memory = { ...snapshot('with', TAKEN), spec: { vmName: 'x', memory: true } };
    expect(desiredDisk(observed({}, { snapshots: [plain, memory] })).snapshots).toEqual([
      { uid: 'plain-uid', name: 'plain' },
      { uid: 'with-uid', name: 'with', memory: true },
    ]);
  });

  it('are not mentioned for a VM that never had one, and are none after the last one is gone', () => {
    expect(desiredDisk(observed({})).snapshots).toBeUndefined();
    const pod = podWith({ snapshots: [{ uid: 'gone-uid', name: 'gone' }] });
    expect(desiredDisk(observed({}, { pod })).snapshots).toEqual([]);
    expect(missingSnapshots(observed({}, { pod }))).toEqual([{ uid: 'gone-uid', name: 'gone' }]);
    const snapshots = [snapshot('gone', TAKEN)];
    expect(missingSnapshots(observed({}, { pod, snapshots }))).toEqual([]);
  });
});

describe('a revert', () => {
  const snapshots = [snapshot('kept', TAKEN), snapshot('saving', { vmUID: 'vm' })];

  it('names the snapshot by its uid, or none for the image', () => {
    const named = observed({ revertRequestedAt: SECOND, revertTo: 'kept' }, { snapshots, pod: podWith({}) });
    expect(desiredDisk(named)).toMatchObject({ revertRequestedAt: SECOND, revertTo: 'kept-uid' });
    const image = observed(
      { revertRequestedAt: SECOND },
      { snapshots, pod: podWith({ revertTo: 'kept-uid' }) },
    );
    expect(desiredDisk(image)).toMatchObject({ revertRequestedAt: SECOND, revertTo: undefined });
  });

  it.each([
    ['saving', 'SnapshotNotReady'],
    ['nothere', 'SnapshotNotFound'],
    ['another', 'SnapshotNotFound'],
  ])('to %s is kept from the host: %s', (revertTo, reason) => {
    const pod = podWith({ revertRequestedAt: FIRST });
    const others = [...snapshots, snapshot('another', { ...TAKEN, vmUID: 'earlier' })];
    const refused = observed({ revertRequestedAt: SECOND, revertTo }, { snapshots: others, pod });
    expect(revertObstacle(refused)).toMatchObject({ reason });
    expect(desiredDisk(refused)).toMatchObject({ revertRequestedAt: FIRST, revertTo: undefined });
    expect(desiredDisk({ ...refused, pod: undefined }).revertRequestedAt).toBeUndefined();
  });

  it('to a snapshot that the present machine does not have is kept from the host', () => {
    const message = JSON.stringify([{ uid: 'another-uid', takenAt: FIRST }]);
    const pod = podWith({});
    const reporting = {
      ...pod,
      metadata: { ...pod.metadata, labels: { [VM_UID_LABEL]: 'vm' } },
      status: { conditions: [{ type: SNAPSHOTS_CONDITION, status: 'True', message }] },
    } as Pod;
    const lost = observed({ revertRequestedAt: SECOND, revertTo: 'kept' }, { snapshots, pod: reporting });
    expect(revertObstacle(lost)).toMatchObject({
      reason: 'SnapshotLost',
      message:
        'spec.revertTo: VMSnapshot kept is lost, so the disk is not reset. The present machine of VM x does not have the snapshot',
    });
    expect(desiredDisk(lost).revertRequestedAt).toBeUndefined();
  });

  it('that the host knows goes on as it is, also when the snapshot is deleted meanwhile', () => {
    const pod = podWith({ revertRequestedAt: SECOND, revertTo: 'kept-uid' });
    const known = observed({ revertRequestedAt: SECOND, revertTo: 'kept' }, { pod });
    expect(revertObstacle(known)).toBeUndefined();
    expect(desiredDisk(known)).toMatchObject({ revertRequestedAt: SECOND, revertTo: 'kept-uid' });
  });
});
