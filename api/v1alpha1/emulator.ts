/** Emulator: an Android emulator on the host of its VM. */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import {
  AGE_COLUMN,
  column,
  conditionColumn,
  type KindDefinition,
  kindResource,
  nameRule,
  PHASE_COLUMN,
  wide,
} from './kind.ts';
import type { ApiObject } from './metadata.ts';
import { memoryQuantity } from './quantity.ts';
import { choice, count, documented, immutable, integer, LABEL, report, text } from './schema.ts';

const SECONDS_PER_DAY = 86_400;
/** Pattern for names of Android platforms, devices and image types, for example android-35, pixel_7 and google_apis. */
const ANDROID_NAME = /^[A-Za-z0-9][-A-Za-z0-9_. ]*$/;

const emulatorSpecSchema = z
  .object({
    vmName: text('VM in this namespace whose host the emulator runs on. Immutable.', 63, LABEL),
    platform: text('Android platform, for example android-35.', 64, ANDROID_NAME).optional(),
    device: text('Device to emulate, for example pixel_7.', 64, ANDROID_NAME).optional(),
    imageType: text('Type of system image, for example google_apis.', 64, ANDROID_NAME).optional(),
    cpu: integer('Number of virtual processors.', 1, 256).optional(),
    memory: memoryQuantity().optional(),
    exposure: choice(
      'Access to ADB, which has no password. PairedVM (the default): only the VM. Host: everyone who reaches the host.',
      ['PairedVM', 'Host'],
    ).optional(),
    deployTimeoutSeconds: integer(
      'Seconds for the deployment, from the choice of a host until Running. 600 when omitted.',
      1,
      SECONDS_PER_DAY,
    ).optional(),
  })
  .meta(documented('Desired emulator.', ...immutable('vmName')));
export type EmulatorSpec = z.infer<typeof emulatorSpecSchema>;

const emulatorStatusSchema = z
  .object({
    ...commonStatus(),
    phase: report('For people: Pending, Starting, Running, Failed or Terminating.', 64).optional(),
    nodeName: report('Host of the emulator.', 253).optional(),
    adb: z
      .object({ address: report('Address.', 253), port: count('Port.', 65_535) })
      .meta({ description: 'Address of ADB.' })
      .optional(),
  })
  .meta({ description: 'Last observed state of the emulator, written by the operator.' });
export type EmulatorStatus = z.infer<typeof emulatorStatusSchema>;
export type Emulator = ApiObject<EmulatorSpec, EmulatorStatus>;

export const EMULATOR_RESOURCE = kindResource('Emulator', 'emulators');

export const EMULATOR_KIND: KindDefinition = {
  ...EMULATOR_RESOURCE,
  shortNames: ['emu'],
  description: 'An Android emulator on the host of its VM. It is not supported yet: its status says so.',
  spec: emulatorSpecSchema,
  status: emulatorStatusSchema,
  rules: [nameRule(63, { dots: false })],
  columns: [
    column('VM', '.spec.vmName', 'VM of the emulator.'),
    PHASE_COLUMN,
    conditionColumn('Ready', 'Ready', 'status'),
    column('Node', '.status.nodeName', 'Host of the emulator.'),
    AGE_COLUMN,
    wide(column('Address', '.status.adb.address', 'Address of ADB.')),
    wide(column('Port', '.status.adb.port', 'Port of ADB.', 'integer')),
    wide(conditionColumn('Message', 'Ready', 'message')),
  ],
};
