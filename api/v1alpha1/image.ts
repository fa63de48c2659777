/** Image: a disk that VMs are made from. */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import { IMAGE_FORMATS } from './imagefields.ts';
import { type ApiObject, column, type KindContent, wide } from './kind.ts';
import {
  choice,
  count,
  diskQuantity,
  documented,
  integer,
  objectName,
  oneOf,
  report,
  text,
  timestamp,
} from './schema.ts';
import {
  descriptionSchema,
  downloadSchema,
  FAILURE_TEXT_LENGTH,
  fileRequestSchema,
  SOURCE_IMMUTABLE,
  storedColumns,
  storedSources,
  storedStatus,
  uploadSchema,
} from './source.ts';
import { architectureSchema, imageName, imagePullSecretsSchema, osSchema } from './template.ts';

const sourceFields = {
  ...storedSources('Image'),
  empty: z
    .object({ size: diskQuantity('size', 'Size of the disk.') })
    .meta({ description: 'An empty disk.' })
    .optional(),
  fromVM: z
    .object({
      name: objectName('Name of the VM, in this namespace.'),
      memory: z
        .boolean()
        .meta({
          description:
            'Whether the image also gets the memory of the running VM. VMs of such an image start from this memory instead of booting.',
        })
        .optional(),
      snapshot: objectName(
        'Name of a VMSnapshot of this VM. The image gets the disk of the snapshot instead of the present one.',
      ).optional(),
    })
    .meta(
      documented('The disk of a VM.', {
        rule: '!has(self.snapshot) || !has(self.memory) || !self.memory',
        message: 'memory must not be set with snapshot, because a snapshot has no memory',
      }),
    )
    .optional(),
  upload: uploadSchema.optional(),
  ipsw: downloadSchema(
    'An IPSW with which an Apple host installs macOS on the disk of each VM. The installation takes long, so save the disk of the first VM as an Image.',
  ).optional(),
};

const imageSourceSchema = z
  .object(sourceFields)
  .meta(
    documented(
      'Source of the image. Exactly one field must be set. Immutable.',
      oneOf(Object.keys(sourceFields)),
    ),
  );

export const formatSchema = choice('Format of the file: Auto (when omitted), Raw or QCOW2.', IMAGE_FORMATS);

/** Time after which an Image is deleted. */
export const TTL = {
  description:
    'Seconds from status.finishedTime until the Image is deleted. When omitted, the Image is not deleted automatically.',
  minimum: 0,
  maximum: 2_147_483_647,
};

const imageSpecSchema = z
  .object({
    description: descriptionSchema.optional(),
    source: imageSourceSchema,
    format: formatSchema.optional(),
    architecture: architectureSchema.optional(),
    os: osSchema.optional(),
    imagePullSecrets: imagePullSecretsSchema.optional(),
    commit: z
      .object({
        vmName: objectName('VM in this namespace. Its disk becomes the content of this Image.'),
        requestedAt: timestamp('A commit starts when this field gets a new time.'),
      })
      .meta({ description: 'Replaces the content of this Image with the disk of a VM.' })
      .optional(),
    push: z
      .object({
        reference: imageName('Target of the push.'),
        secretName: objectName(
          'Name of the Secret with the credentials for the registry. The Secret is in this namespace.',
        ).optional(),
        requestedAt: timestamp('Set a new time to start a push.'),
      })
      .meta({ description: 'Pushes this Image to a registry.' })
      .optional(),
    download: fileRequestSchema.optional(),
    ttlSecondsAfterFinished: integer(TTL.description, TTL.minimum, TTL.maximum).optional(),
  })
  .meta(documented('Desired image.', SOURCE_IMMUTABLE));
export type ImageSpec = z.infer<typeof imageSpecSchema>;

function action(description: string) {
  return z
    .object({
      requestedAt: timestamp('Value of requestedAt to which this result belongs.'),
      finishedAt: timestamp('Time when the work ended.').optional(),
      result: report('Succeeded or Failed.', 64).optional(),
      reference: text('OCI reference of the result.', 1024).optional(),
      message: report('Description of the result, as text for people.', FAILURE_TEXT_LENGTH).optional(),
    })
    .meta({ description })
    .optional();
}

const memoryStatusSchema = z
  .object({
    size: report('Size of the memory, as a quantity. VMs that start from it have the same size.', 32),
    cpu: count('Number of virtual processors of the saved VM. VMs that start from the memory have as many.'),
    key: report(
      'Checksum of all else that a host and a VM must have in common with the saved VM: hypervisor, accelerator, processor and devices.',
      64,
    ),
    savedAt: timestamp('Time when the memory was saved.'),
  })
  .meta({ description: 'Memory from which VMs of the image start. Absent if the image has only a disk.' });

export const imageStatusSchema = z
  .object({
    ...storedStatus(),
    ...commonStatus(),
    memory: memoryStatusSchema.optional(),
    lastCommit: action('The last commit.'),
    lastPush: action('The last push.'),
    finishedTime: timestamp(
      'Time when the last work on this Image ended. The operator sets this time when two things are true: no commit or push runs, and the content is complete or can never become complete. The time is also set while the VM in fromVM does not exist, or has failed and left no disk.',
    ).optional(),
  })
  .meta({ description: 'Last observed state of the Image, written by the operator.' });
export type ImageStatus = z.infer<typeof imageStatusSchema>;
export type Image = ApiObject<ImageSpec, ImageStatus>;

export const IMAGE_KIND: KindContent = {
  shortNames: ['img'],
  description: 'A disk from which VMs are made.',
  spec: imageSpecSchema,
  status: imageStatusSchema,
  rules: [],
  columns: [
    ...storedColumns('Size of the disk that a VM gets from the image.'),
    wide(column('Memory', '.status.memory.size', 'Memory from which VMs of the image start.')),
  ],
};
