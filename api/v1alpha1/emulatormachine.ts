/**
 * The contract between the operator and the agent for emulators. The Pod of an emulator has the annotations of a VM's Pod.
 * `berth.dev/machine` contains an {@link EmulatorMachine} instead of a Machine. `berth.dev/desired` has the shape that it has for VMs. The
 * operator never stops, suspends or restarts an emulator: in `berth.dev/desired` its power is always Running, and its restart policy is
 * Never.
 */
import * as z from 'zod';

/** Version of the annotation `berth.dev/machine` of an emulator. If an agent does not know the version, it refuses the Pod with `AgentTooOld`. */
export const EMULATOR_API_VERSION = 'emulator.berth.dev/v1';

/** Pattern of an Android platform, device or image type. Such a name is a part of paths and of lines in configuration files. */
export const ANDROID_NAME = /^[A-Za-z0-9][-A-Za-z0-9_.]*$/;
/**
 * Names of devices that users can choose. They are listed here, because the SDK has its list only in a Java program, which Berth does not
 * run.
 */
export const EMULATOR_DEVICES = [
  'medium_phone',
  'medium_tablet',
  'pixel_6',
  'pixel_7',
  'pixel_8',
  'pixel_9',
  'pixel_9_pro',
  'pixel_tablet',
  'small_phone',
] as const;
const androidName = z.string().max(64).regex(ANDROID_NAME);
const owner = z.object({ namespace: z.string(), name: z.string(), uid: z.string() });

/** The emulator that one host must run. */
export const emulatorMachineSchema = z.object({
  apiVersion: z.literal(EMULATOR_API_VERSION),
  emulator: owner,
  /** The paired VM, whose machine runs on the same host. */
  vm: owner,
  platform: androidName,
  device: androidName,
  imageType: androidName,
  /** `PairedVM`: only the machine of `vm` reaches ADB. `Host`: a port of the host leads to ADB. */
  exposure: z.enum(['PairedVM', 'Host']),
  /**
   * Value of `stops` in the report of the VM's machine when the operator wrote this document. If the VM's value is different later, the VM
   * was stopped while the emulator existed.
   */
  stops: z.number().int().min(0).optional(),
});
export type EmulatorMachine = z.infer<typeof emulatorMachineSchema>;

/**
 * Memory that an emulator's process needs beside the guest's memory, in bytes. The operator adds this value to the Pod's request.
 * Users report 0.4 to 0.8 GB.
 */
export const EMULATOR_MEMORY_OVERHEAD_BYTES = 1024 * 1024 * 1024;

/** Size in bytes of the data disk that the emulator makes. The Pod of the emulator requests this size, like the Pod of a VM. */
export const EMULATOR_DATA_BYTES = 6 * 1024 * 1024 * 1024;

/** Name of a system image without its architecture, for example `android-36.google_apis`. It is a part of a Node's label. */
export function systemImageName({
  platform,
  imageType,
}: Pick<EmulatorMachine, 'platform' | 'imageType'>): string {
  return `${platform}.${imageType}`;
}
