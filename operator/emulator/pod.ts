/** Builds the Pod of an Emulator: requests and affinity for the scheduler, and two annotations for the host's agent. */
import { diskRequest } from '../../api/v1alpha1/hostspace.ts';
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import {
  EMULATOR_API_VERSION,
  EMULATOR_DATA_BYTES,
  EMULATOR_MEMORY_OVERHEAD_BYTES,
  type EmulatorMachine,
  emulatorMachineSchema,
  systemImageName,
} from '../../api/v1alpha1/emulatormachine.ts';
import { type Desired, parseDocument } from '../../api/v1alpha1/machine.ts';
import {
  ADB_PORT,
  EMULATOR_UID_LABEL,
  emulatorPodName,
  MACHINE_ANNOTATION,
  SLOT_RESOURCE,
  WORKLOAD_LABEL,
} from '../../api/v1alpha1/names.ts';
import { formatQuantity, parseQuantity } from '../../api/v1alpha1/quantity.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Pod, PodSpec } from '../../kube/core.ts';
import type { Unsaved } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { machineMetadata, machineSpec } from '../podbacked/build.ts';
import { machineReport } from '../podbacked/pod.ts';
import { resolveSpec } from './observe.ts';

export interface EmulatorPodOptions {
  readonly emulator: Emulator;
  readonly vm: VM;
  /** Pod of the VM. It reports how many times the VM has stopped. */
  readonly vmPod?: Pod | undefined;
  /** Host of the VM. */
  readonly host: string;
  readonly config: OperatorConfig;
}

export function buildPod(options: EmulatorPodOptions): Unsaved<Pod> {
  const { emulator } = options;
  const { name, uid = '' } = emulator.metadata;
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      ...machineMetadata('Emulator', emulator.metadata, buildMachine(options), buildDesired(emulator)),
      name: emulatorPodName(name),
      labels: { [EMULATOR_UID_LABEL]: uid, [WORKLOAD_LABEL]: 'emulator' },
    },
    spec: buildSpec(options),
  };
}

/**
 * Returns the name of the only host that can run the Pod. A Pod that is not yet bound names this host in its affinity, because a `nodeName`
 * would bypass the scheduler.
 */
export function hostOfPod({ spec }: Pod): string | undefined {
  const required = spec.affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution;
  return spec.nodeName ?? required?.nodeSelectorTerms[0]?.matchFields?.[0]?.values?.[0];
}

function buildMachine({ emulator, vm, vmPod }: EmulatorPodOptions): EmulatorMachine {
  const { platform, device, imageType, exposure } = resolveSpec(emulator.spec);
  const { stops } = machineReport(vmPod);
  return {
    apiVersion: EMULATOR_API_VERSION,
    emulator: identityOf(emulator),
    vm: identityOf(vm),
    platform,
    device,
    imageType,
    exposure,
    ...(stops === undefined ? {} : { stops }),
  };
}

/**
 * Returns how many times the VM had been stopped when the Pod was created. The result is undefined if the Pod's annotation does not contain
 * this number.
 */
export function stopsOf({ metadata }: Pod): number | undefined {
  return emulatorMachineSchema.safeParse(parseDocument(metadata.annotations?.[MACHINE_ANNOTATION])).data
    ?.stops;
}

function identityOf({ metadata: { namespace = '', name, uid = '' } }: Emulator | VM): EmulatorMachine['vm'] {
  return { namespace, name, uid };
}

/** Returns the content of the annotation `berth.dev/desired`. For an Emulator, this content never changes. */
function buildDesired({ spec }: Emulator): Desired {
  const { cpu, memory } = resolveSpec(spec);
  return { powerState: 'Running', restartPolicy: 'Never', cpu, memoryBytes: Number(parseQuantity(memory)) };
}

function buildSpec({ emulator, host, config }: EmulatorPodOptions): PodSpec {
  const { cpu, memory, platform, imageType } = resolveSpec(emulator.spec);
  const diskSizeBytes = BigInt(EMULATOR_DATA_BYTES);
  const resources = {
    cpu: String(cpu),
    memory: formatQuantity(parseQuantity(memory) + BigInt(EMULATOR_MEMORY_OVERHEAD_BYTES)),
    'ephemeral-storage': diskRequest({ diskSizeBytes, imageSizeBytes: undefined }, config),
    [SLOT_RESOURCE]: '1',
  };
  return machineSpec({
    placement: { dedicatedTo: emulator.metadata.namespace ?? '', nodeName: host },
    pullSecrets: [],
    config,
    resources,
    container: {
      // A Pod must name an image. Nobody pulls this image, but its name shows users which system image of Android the emulator has.
      image: systemImageName({ platform, imageType }),
      ports: [{ name: 'adb', protocol: 'TCP', containerPort: ADB_PORT }],
    },
    // The emptyDir is a placeholder for the emulator's data. Because of this volume, `kubectl drain` requires the flag
    // --delete-emptydir-data before it destroys the data.
    volumes: [{ name: 'data', emptyDir: {} }],
  });
}
