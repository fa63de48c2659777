import { expect, it } from 'vitest';
import type { Emulator, EmulatorSpec } from '../../api/v1alpha1/emulator.ts';
import { emulatorMachineSchema } from '../../api/v1alpha1/emulatormachine.ts';
import { desiredSchema } from '../../api/v1alpha1/machine.ts';
import { DESIRED_ANNOTATION, MACHINE_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Pod } from '../../kube/core.ts';
import { parseConfig } from '../config/config.ts';
import { buildPod, hostOfPod } from './pod.ts';

const config = parseConfig({ priorityClassName: 'machines' }, 'test');

function podOf(spec: Partial<EmulatorSpec> = {}): Pod {
  const metadata = { namespace: 'platform-ci', name: 'pixel', uid: 'emulator-uid' };
  const emulator = { metadata, spec: { vmName: 'desk', ...spec } } as Emulator;
  const vm = { metadata: { namespace: 'platform-ci', name: 'desk', uid: 'vm-uid' } } as VM;
  return buildPod({ emulator, vm, host: 'mac-1', config }) as Pod;
}

function documentsOf({ metadata: { annotations = {} } }: Pod) {
  return {
    machine: emulatorMachineSchema.parse(JSON.parse(annotations[MACHINE_ANNOTATION] ?? '')),
    desired: desiredSchema.parse(JSON.parse(annotations[DESIRED_ANNOTATION] ?? '')),
  };
}

it('an Emulator that names only its VM has the documented values', () => {
  const pod = podOf();
  expect(documentsOf(pod)).toEqual({
    machine: {
      apiVersion: 'emulator.berth.dev/v1',
      emulator: { namespace: 'platform-ci', name: 'pixel', uid: 'emulator-uid' },
      vm: { namespace: 'platform-ci', name: 'desk', uid: 'vm-uid' },
      platform: 'android-36',
      device: 'pixel_9',
      imageType: 'google_apis',
      exposure: 'PairedVM',
    },
    desired: { powerState: 'Running', restartPolicy: 'Never', cpu: 2, memoryBytes: 4 * 1024 ** 3 },
  });
  const resources = { cpu: '2', memory: '5Gi', 'ephemeral-storage': '1229Mi', 'berth.dev/slot': '1' };
  expect(pod.spec.containers[0]?.resources).toEqual({ requests: resources, limits: resources });
});

it('platform, device, image type, size and exposure go to the host, and the size to the scheduler', () => {
  const names = {
    platform: 'android-35',
    device: 'pixel_tablet',
    imageType: 'default',
    exposure: 'Host',
  } as const;
  const pod = podOf({ ...names, cpu: 4, memory: '3Gi' });
  const { machine, desired } = documentsOf(pod);
  expect(machine).toMatchObject(names);
  expect(desired).toMatchObject({ cpu: 4, memoryBytes: 3 * 1024 ** 3 });
  expect(pod.spec.containers[0]?.resources?.requests).toMatchObject({ cpu: '4', memory: '4Gi' });
});

it('its Pod may run on the host of its VM alone, is owned by the Emulator, and is no Pod of a VM', () => {
  const { metadata, spec } = podOf();
  expect(metadata).toMatchObject({
    name: 'pixel.emulator',
    labels: { 'berth.dev/emulator-uid': 'emulator-uid', 'berth.dev/workload': 'emulator' },
    ownerReferences: [{ kind: 'Emulator', uid: 'emulator-uid', controller: true }],
  });
  expect(metadata.labels).not.toHaveProperty(['berth.dev/vm-uid']);
  expect(metadata.finalizers).toBeUndefined();
  const terms =
    spec.affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution?.nodeSelectorTerms ?? [];
  const only = [{ key: 'metadata.name', operator: 'In', values: ['mac-1'] }];
  expect(terms.map(({ matchFields }) => matchFields)).toEqual(terms.map(() => only));
  expect([terms.length, hostOfPod({ metadata, spec } as Pod), spec.priorityClassName]).toEqual([
    2,
    'mac-1',
    'machines',
  ]);
});
