import { expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMSnapshot, VMSnapshotStatus } from '../../api/v1alpha1/vmsnapshot.ts';
import { parseConfig } from '../config/config.ts';
import type { ObservedImage } from './observe.ts';
import { dueOperation } from './operation.ts';

const takenAt = '2026-01-01T00:00:00Z';
const apiVersion = 'berth.dev/v1alpha1';
const metadata = { namespace: 'platform-ci', uid: 'u1', name: 'saved' };
const VM_BUILDER: VM = {
  apiVersion,
  kind: 'VM',
  metadata: { ...metadata, name: 'builder', uid: 'v1' },
  spec: {},
  status: { nodeName: 'mac1', firstRunningTime: takenAt },
};

/** Returns the operation that an Image of the snapshot `before` needs if the snapshot has this status, or does not exist. */
function operationFor(status: VMSnapshotStatus | undefined) {
  const named = { ...metadata, name: 'before', uid: 's1' };
  const found: VMSnapshot[] =
    status === undefined
      ? []
      : [{ apiVersion, kind: 'VMSnapshot', metadata: named, spec: { vmName: 'builder' }, status }];
  const source = { fromVM: { name: 'builder', snapshot: 'before' } };
  const observed: ObservedImage = {
    object: { apiVersion, kind: 'Image', metadata, spec: { source } },
    kind: 'Image',
    jobs: [],
    origin: undefined,
    vm: () => VM_BUILDER,
    snapshot: (name) => found.find((one) => one.metadata.name === name),
    deploying: [],
    credentials: [],
    isDedicated: () => false,
    config: parseConfig({ imageStorage: { folder: true } }, 'test'),
    now: 0,
  };
  return dueOperation(observed);
}

it.each<[string, VMSnapshotStatus | undefined, string]>([
  ['does not exist', undefined, 'SnapshotNotFound'],
  ['is that of an earlier VM of this name', { vmUID: 'earlier', takenAt }, 'SnapshotNotFound'],
  ['was not taken yet', { vmUID: 'v1', phase: 'Saving' }, 'SnapshotNotReady'],
])('an Image of a snapshot that %s waits', (_, status, reason) => {
  expect(operationFor(status)).toMatchObject({ kind: 'blocked', reason });
});

it('an Image of a snapshot names it to the host of the VM by its uid', () => {
  expect(operationFor({ vmUID: 'v1', takenAt })).toMatchObject({
    kind: 'operation',
    nodeName: 'mac1',
    task: { type: 'save', vm: { uid: 'v1' }, snapshot: 's1' },
  });
});
