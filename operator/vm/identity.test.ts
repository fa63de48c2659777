import { expect, test } from 'vitest';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { MACHINE_ANNOTATION, MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import { machineDocument } from '../../test/fixtures/machines.ts';
import type { ObservedVM } from './observe.ts';
import { machineStatus } from './status.ts';

const OWN = { hardwareUUID: '3f2b8f0e-0a52-4b7e-9d53-5b8a3b7a0c01', serialNumber: 'BERTH00001' };
const NONE = { hardwareUUID: undefined, serialNumber: undefined };

/** Returns the status of a VM whose host reports this accelerator. */
function statusOf(accelerator: string, change: Partial<Machine> = {}) {
  const document = machineDocument({ namespace: 'ci', name: 'vm', uid: 'uid' }, change);
  const message = JSON.stringify({ accelerator });
  const pod = {
    metadata: { annotations: { [MACHINE_ANNOTATION]: JSON.stringify(document) } },
    spec: { containers: [] },
    status: { conditions: [{ type: MACHINE_CONDITION, status: 'False', message }] },
  };
  return machineStatus({ vm: { spec: {} }, pod } as unknown as ObservedVM, 'Running');
}

test('a VM shows no identity that its guest does not have, because the guest has that of its image on an Apple host', () => {
  expect(statusOf('kvm')).toMatchObject(OWN);
  expect(statusOf('vz')).toMatchObject(NONE);
  expect(statusOf('kvm', { os: 'MacOS' })).toMatchObject(NONE);
});
