/**
 * The contract between the operator and the agent for emulators. The Pod of an emulator has the same annotations as the Pod of a VM.
 * `berth.dev/machine` contains an {@link EmulatorMachine} instead of a Machine. `berth.dev/desired` has the same shape as for VMs. The
 * operator never stops, suspends or restarts an emulator, so `powerState` in `berth.dev/desired` is always Running, and the restart policy is
 * Never.
 */
import * as z from 'zod';

/** Version of an emulator's annotation `berth.dev/machine`. An agent that does not know the version refuses the Pod (`AgentTooOld`). */
export const EMULATOR_API_VERSION = 'emulator.berth.dev/v1';

/**
 * Pattern of the name of an Android platform, device or image type. It allows no slashes and no spaces, because such names become parts of
 * paths and of configuration files.
 */
export const ANDROID_NAME = /^[A-Za-z0-9][-A-Za-z0-9_.]*$/;
/**
 * Names of devices that users can choose. The list is repeated here, because the SDK contains it only in a Java program, which Berth does
 * not run.
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

/** Description of the emulator that the host must run. */
export const emulatorMachineSchema = z.object({
  apiVersion: z.literal(EMULATOR_API_VERSION),
  emulator: owner,
  /** The VM to which the emulator belongs. The VM's machine runs on the same host. */
  vm: owner,
  platform: androidName,
  device: androidName,
  imageType: androidName,
  /** `PairedVM`: only the machine of `vm` can reach ADB. `Host`: a port of the host leads to ADB. */
  exposure: z.enum(['PairedVM', 'Host']),
  /**
   * Value of `stops` that the VM's machine had reported when the operator wrote this document. If the machine later reports another value,
   * the VM was stopped while the emulator existed.
   */
  stops: z.number().int().min(0).optional(),
});
export type EmulatorMachine = z.infer<typeof emulatorMachineSchema>;

/**
 * Memory in bytes that an emulator's process needs in addition to the guest's memory. The operator adds this value to the Pod's request.
 * Users report that the process needs 0.4 to 0.8 GB.
 */
export const EMULATOR_MEMORY_OVERHEAD_BYTES = 1024 * 1024 * 1024;

/** Size in bytes of the data disk that the emulator creates. The emulator's Pod requests this size. */
export const EMULATOR_DATA_BYTES = 6 * 1024 * 1024 * 1024;

/**
 * Returns the name of a system image without its architecture, for example `android-36.google_apis`. A label of a Node contains this name.
 */
export function systemImageName({
  platform,
  imageType,
}: Pick<EmulatorMachine, 'platform' | 'imageType'>): string {
  return `${platform}.${imageType}`;
}
