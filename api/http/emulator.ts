/** Android emulators as the HTTP API shows and accepts them. */
import * as z from 'zod';
import { DEPLOY_MINUTES_MAXIMUM } from '../v1alpha1/fields.ts';
import { ANDROID_NAME, EMULATOR_DEVICES } from '../v1alpha1/emulatormachine.ts';
import { choice, LABEL, text } from '../v1alpha1/schema.ts';
import { continueField, whole } from './request.ts';

const phaseSchema = z.enum(['Pending', 'Running', 'Failed', 'Stopped', 'Terminating']);

/** Emulator in an answer. The address and the port of ADB each have two names, because different clients read different names. */
export const emulatorItemSchema = z
  .object({
    name: z.string(),
    vm: z.string().meta({ description: 'VM to which the emulator belongs.' }),
    node: z.string().optional(),
    status: phaseSchema,
    phase: phaseSchema.meta({ description: 'The same as `status`.' }),
    platform: z.string(),
    imageType: z.string(),
    deviceProfile: z.string(),
    adbRelayIP: z.string().optional().meta({ description: 'Address of ADB, while the emulator runs.' }),
    adbRelayPort: z.int().optional().meta({ description: 'Port of ADB, while the emulator runs.' }),
    relayIp: z.string().optional().meta({ description: 'The same as `adbRelayIP`.' }),
    relayPort: z.int().optional().meta({ description: 'The same as `adbRelayPort`.' }),
    errorMessage: z.string().optional(),
    message: z.string().optional().meta({ description: 'Reason why the emulator does not run yet.' }),
  })
  .meta({ id: 'Emulator', description: 'An emulator with its state.' });
export type EmulatorItem = z.infer<typeof emulatorItemSchema>;

export const emulatorListSchema = z
  .object({ items: z.array(emulatorItemSchema), continue: continueField })
  .meta({ id: 'EmulatorList', description: 'The emulators of a namespace.' });

/** Bounds of memory in MiB. The Emulator kind has the same bounds. */
const MEMORY = { minimum: 2_560, maximum: 16_777_216 };

function androidName(description: string) {
  return text(description, 64, ANDROID_NAME).optional();
}

export const emulatorRequestSchema = z
  .object({
    vm: text(
      'Name of the VM to which the emulator belongs. The VM is in the same namespace and must run.',
      63,
      LABEL,
    ),
    name: text('Name of the emulator. When omitted, a name is generated.', 63, LABEL).optional(),
    platform: androidName('Android platform. android-36 when omitted.'),
    device: choice('Device to emulate. pixel_9 when omitted.', EMULATOR_DEVICES).optional(),
    imageType: androidName('Type of the system image. google_apis when omitted.'),
    cpu: whole(1, 256).optional().meta({ description: 'Number of virtual processors. 2 when omitted.' }),
    memory: whole(MEMORY.minimum, MEMORY.maximum)
      .optional()
      .meta({ description: 'Memory of Android in MiB. 4096 when omitted.' }),
    timeout: whole(1, DEPLOY_MINUTES_MAXIMUM)
      .optional()
      .meta({ description: 'Minutes to wait until the emulator runs. 5 when omitted.' }),
    config: text(
      'Emulator configs are not supported. Give the values of the emulator in the request.',
      253,
    ).optional(),
  })
  .refine(({ config }) => config === undefined, {
    error: 'there are no emulator configs: give the values in the request',
    path: ['config'],
  });
export type EmulatorRequest = z.infer<typeof emulatorRequestSchema>;
