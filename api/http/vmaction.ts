/** Schemas of the requests for actions on one VM (power, save, commit, push, resize, delete), and of the answers about pushes. */
import * as z from 'zod';
import { IMAGE_NAME_LENGTH } from '../v1alpha1/objectname.ts';
import { objectName } from '../v1alpha1/schema.ts';
import { descriptionSchema } from '../v1alpha1/source.ts';
import { imageName } from '../v1alpha1/template.ts';
import { sameField, whole } from './fields.ts';

/** Largest disk in GB. */
const DISK_MAXIMUM = 1_000_000;

const COMMANDS = ['start', 'stop', 'suspend', 'resume', 'revert'] as const;
export type Command = (typeof COMMANDS)[number];

const commandSchema = z.enum(COMMANDS);

/** Body with a command. Clients send the command under one of three keys. */
export const execBody = z
  .object({
    command: commandSchema.optional(),
    action: commandSchema.optional().meta({ description: 'Another name of the field `command`.' }),
    operation: commandSchema.optional().meta({ description: 'Another name of the field `command`.' }),
  })
  .refine(({ command, action, operation }) => (command ?? action ?? operation) !== undefined, {
    error: 'is required',
    path: ['command'],
  })
  .refine(...sameField('command', 'action', 'operation'));

export const execParams = { command: commandSchema };

export const saveBody = z.object({
  imageName: objectName('Name of the new image.').max(IMAGE_NAME_LENGTH),
  description: descriptionSchema.optional(),
});

export const commitBody = z.object({ description: descriptionSchema.optional() });

export const pushBody = z.object({ imageReference: imageName('Target of the push.') });

export const pushStartedSchema = z.object({
  jobName: z.string().meta({ description: 'Name of the push.' }),
});

export const resizeBody = z.object({
  size: whole(1, DISK_MAXIMUM).meta({ description: 'Size of the disk in GB. A disk can only grow.' }),
});

export const pushSchema = z
  .object({
    jobName: z.string(),
    image: z.string().meta({ description: 'Target of the push.' }),
    status: z.enum(['Pending', 'Running', 'Succeeded', 'Failed']),
    progressPercent: z.int().optional(),
    message: z.string().optional(),
  })
  .meta({ id: 'Push' });
export type Push = z.infer<typeof pushSchema>;

export const pushListSchema = z.object({ items: z.array(pushSchema) });

export const deleteQuery = z.object({
  wait: z
    .enum(['true', 'false'])
    .default('false')
    .meta({ description: 'If true, the server answers only after the VM is completely removed.' }),
});
