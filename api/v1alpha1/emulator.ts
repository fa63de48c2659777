/** Emulator: an Android emulator on the host of its VM. */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import {
  AGE_COLUMN,
  type ApiObject,
  column,
  conditionColumn,
  type KindContent,
  nameRule,
  PHASE_COLUMN,
  selectable,
  wide,
} from './kind.ts';
import { ANDROID_NAME, EMULATOR_DEVICES } from './emulatormachine.ts';
import {
  choice,
  count,
  documented,
  immutable,
  integer,
  LABEL,
  memoryQuantity,
  report,
  text,
  timestamp,
} from './schema.ts';

const SECONDS_PER_DAY = 86_400;

/**
 * Smallest allowed memory of an emulator. The emulator program would raise a smaller value to this minimum. It would then use more memory
 * than the Pod requests.
 */
const LEAST_MEMORY = '2560Mi';

const emulatorSpecSchema = z
  .object({
    vmName: text(
      'Name of the VM to which the emulator belongs. The VM is in the same namespace. The emulator runs on the host of this VM, as long as the VM runs. Immutable.',
      63,
      LABEL,
    ),
    platform: text(
      'Android platform, by its name in the SDK. android-36 when omitted. Immutable.',
      64,
      ANDROID_NAME,
    ).optional(),
    device: choice(
      'Device to emulate. It sets the size of the screen. pixel_9 when omitted. Immutable.',
      EMULATOR_DEVICES,
    ).optional(),
    imageType: text(
      'Type of the system image, for example google_apis or default. google_apis when omitted. Immutable.',
      64,
      ANDROID_NAME,
    ).optional(),
    cpu: integer('Number of virtual processors. 2 when omitted. Immutable.', 1, 256).optional(),
    memory: memoryQuantity(
      'Memory of Android. 4Gi when omitted. The Pod requests 1Gi more, because the process of the emulator needs it. Immutable.',
      LEAST_MEMORY,
    ).optional(),
    exposure: choice(
      'Computers that can reach ADB. ADB has no password. PairedVM (the default): only the VM in vmName can reach ADB. Host: every computer that reaches the host can reach ADB at a port of the host. Immutable.',
      ['PairedVM', 'Host'],
    ).optional(),
    whenVMStops: choice(
      'Behaviour when the VM stops. Stop (the default): the emulator stops, its data are deleted, and the Emulator object stays. When the VM runs again, the emulator starts with new data. Delete: the emulator stops, and the Emulator object is deleted.',
      ['Stop', 'Delete'],
    ).optional(),
    deployTimeoutSeconds: integer(
      'Time limit for a start, in seconds: from the choice of the host until Android has booted. 600 when omitted. Immutable.',
      1,
      SECONDS_PER_DAY,
    ).optional(),
  })
  .meta(
    documented(
      'Desired emulator.',
      ...immutable(
        'vmName',
        'platform',
        'device',
        'imageType',
        'cpu',
        'memory',
        'exposure',
        'deployTimeoutSeconds',
      ),
    ),
  );
export type EmulatorSpec = z.infer<typeof emulatorSpecSchema>;

export const emulatorStatusSchema = z
  .object({
    ...commonStatus(),
    phase: report(
      'Phase of the emulator: Pending, Scheduled, Starting, Running, Stopped, Failed or Terminating. It is for people. Programs read the conditions instead.',
      64,
    ).optional(),
    nodeName: report('Host of the emulator.', 253).optional(),
    firstRunningTime: timestamp('Time when the emulator first ran. This time never changes.').optional(),
    failure: z
      .object({
        reason: report('Reason of the failure, as one word that programs can read.', 1024),
        message: report('Description of the failure, with the last output of the emulator.', 32_768),
        time: timestamp('Time when the operator recorded the failure.'),
      })
      .meta({
        description: 'Reason why the emulator failed. The operator removes this field when the VM stops.',
      })
      .optional(),
    adb: z
      .object({ address: report('Address.', 253), port: count('Port.', 65_535) })
      .meta({
        description:
          'Address and port of ADB. If exposure is PairedVM, only the VM reaches this address. If exposure is Host, the address is that of the host.',
      })
      .optional(),
  })
  .meta({ description: 'Last observed state of the emulator, written by the operator.' });
export type EmulatorStatus = z.infer<typeof emulatorStatusSchema>;
export type Emulator = ApiObject<EmulatorSpec, EmulatorStatus>;

export const EMULATOR_KIND: KindContent = {
  shortNames: ['emu'],
  description:
    'An Android emulator on the host of a VM. Early access: a later release can change the fields.',
  spec: emulatorSpecSchema,
  status: emulatorStatusSchema,
  rules: [nameRule(63, { dots: false })],
  columns: [
    selectable(column('VM', '.spec.vmName', 'VM of the emulator.')),
    PHASE_COLUMN,
    conditionColumn('Ready', 'Ready', 'status'),
    selectable(column('Node', '.status.nodeName', 'Host of the emulator.')),
    AGE_COLUMN,
    wide(column('Address', '.status.adb.address', 'Address of ADB.')),
    wide(column('Port', '.status.adb.port', 'Port of ADB.', 'integer')),
    wide(conditionColumn('Message', 'Ready', 'message')),
  ],
};
