/** VMPool: keeps a number of VMs ready, from which users take one at once. A VM that was taken never comes back. */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import type { DisplayDpiMaximum } from './fields.ts';
import {
  AGE_COLUMN,
  type ApiObject,
  column,
  conditionColumn,
  type KindContent,
  nameRule,
  wide,
} from './kind.ts';
import { choice, count, type CelRule, documented, immutable, integer, report, timestamp } from './schema.ts';
import { POOL_REPLICAS_MAXIMUM } from './poolmembers.ts';
import { vmTemplateSchema } from './vmtemplate.ts';

/** Longest name of a pool. The names of its VMs have a dash and five characters more. */
const NAME_LENGTH = 57;
const YEAR_SECONDS = 365 * 86_400;

/** A VM of a pool with the mode OneShot can have a job at any time. Berth does not know it, so it deletes no such VM that runs. */
const ONE_SHOT_FIELDS = ['maxAgeSeconds', 'yieldToWaiting'] as const;
const ONE_SHOT: readonly CelRule[] = [
  ...ONE_SHOT_FIELDS.map((field) => ({
    rule: `!has(self.mode) || self.mode != 'OneShot' || !has(self.${field})`,
    message: `${field} must not be set with mode OneShot, because a VM that runs can have a job`,
    fieldPath: `.${field}`,
  })),
  {
    rule: "!has(self.mode) || self.mode != 'OneShot' || !has(self.update) || !has(self.update.type) || self.update.type == 'OnRefill'",
    message: 'update.type must be OnRefill with mode OneShot, because a VM that runs can have a job',
    fieldPath: '.update',
  },
  {
    rule: "!has(self.mode) || self.mode != 'OneShot' || !has(self.template.spec.powerState) || self.template.spec.powerState == 'Running'",
    message:
      'template.spec.powerState must be Running with mode OneShot, because each VM takes a job by itself',
    fieldPath: '.template.spec.powerState',
  },
  {
    rule: "!has(self.mode) || self.mode != 'OneShot' || !has(self.template.spec.restartPolicy) || self.template.spec.restartPolicy != 'Always'",
    message:
      'template.spec.restartPolicy must not be Always with mode OneShot, because each VM ends after its job',
    fieldPath: '.template.spec.restartPolicy',
  },
];

/** Returns the schema of a pool's spec. `dpiMaximum` is the largest allowed DPI of the display. */
function vmPoolSpec(dpiMaximum: DisplayDpiMaximum) {
  return z
    .object({
      replicas: integer(
        'Number of VMs that the pool keeps. With mode Claim these are the VMs that nobody has claimed.',
        0,
        POOL_REPLICAS_MAXIMUM,
      ),
      template: vmTemplateSchema(dpiMaximum),
      mode: choice(
        'Claim (the default): users claim VMs of the pool, and the pool refills itself. OneShot: each VM takes one job by itself and powers off, and the pool then deletes and replaces the VM.',
        ['Claim', 'OneShot'],
      ).optional(),
      maxAgeSeconds: integer(
        'Age in seconds, give or take a tenth, after which a VM that nobody has claimed is replaced. 86400 when omitted.',
        60,
        YEAR_SECONDS,
      ).optional(),
      update: z
        .object({
          type: choice(
            'OnRefill (the default): VMs of an earlier template or image stay until they are claimed or too old. Replace: the pool replaces them one after the other.',
            ['OnRefill', 'Replace'],
          ).optional(),
          maxUnavailable: integer(
            'Number of VMs below `replicas` that may be missing because of a replacement. 1 when omitted.',
            1,
            POOL_REPLICAS_MAXIMUM,
          ).optional(),
        })
        .meta({ description: 'Replacement of VMs when the template or the content of its image changes.' })
        .optional(),
      keepFreeSlots: integer(
        'Number of slots that the pool leaves free on the hosts that suit its VMs. It makes no VM while there are fewer. 0 when omitted.',
        0,
        100_000,
      ).optional(),
      yieldToWaiting: z
        .boolean()
        .meta({
          description:
            'Whether VMs that nobody has claimed make room for VMs that wait for a host, of any namespace. The oldest goes first, at most one per second. True when omitted.',
        })
        .optional(),
      readyDeadlineSeconds: integer(
        'Seconds in which a VM must become Ready after it got a host. After that, the pool replaces it. 600 when omitted.',
        1,
        86_400,
      ).optional(),
    })
    .meta(documented('Desired pool.', ...ONE_SHOT, ...immutable('mode')));
}

export type VMPoolSpec = z.infer<ReturnType<typeof vmPoolSpec>>;

const failuresSchema = z
  .object({
    count: count('Number of VMs of this revision that failed in a row.'),
    time: timestamp('Time when the pool noticed the last failure.'),
    name: report('Name of the VM that failed last.', 63),
    message: report('Why that VM failed, with its last words.', 4_096),
  })
  .meta({ description: 'VMs that failed in a row, since a VM of the pool was last Ready.' });

export const vmPoolStatusSchema = z
  .object({
    ...commonStatus(),
    replicas: count(
      'Number of VMs of the pool that nobody has claimed, without those that are being deleted.',
    ).optional(),
    readyReplicas: count('Number of VMs that are Ready and that nobody has claimed.').optional(),
    staleReplicas: count(
      'Number of VMs of an earlier template or of an earlier content of the image.',
    ).optional(),
    claimedTotal: count(
      'Number of VMs that were claimed, as far as the operator has seen it.',
      Number.MAX_SAFE_INTEGER,
    ).optional(),
    selector: report('Label selector of the VMs of the pool, for autoscalers.', 128).optional(),
    revision: report(
      'Revision of the template and of the content of its image. VMs of this revision have it in the label berth.dev/pool-revision.',
      63,
    ).optional(),
    readyRevision: report('Last revision of which a VM became Ready.', 63).optional(),
    failures: failuresSchema.optional(),
  })
  .meta({ description: 'Last observed state of the pool, written by the operator.' });
export type VMPoolStatus = z.infer<typeof vmPoolStatusSchema>;
export type VMPool = ApiObject<VMPoolSpec, VMPoolStatus>;

/** Returns the VMPool kind. `dpiMaximum` is the largest allowed DPI of the display. */
export function vmPoolKind(dpiMaximum: DisplayDpiMaximum): KindContent {
  return {
    shortNames: ['vmp'],
    description: 'Keeps VMs ready, so that a job gets a machine at once. Each VM is used once.',
    spec: vmPoolSpec(dpiMaximum),
    status: vmPoolStatusSchema,
    isScalable: true,
    rules: [nameRule(NAME_LENGTH, { dots: false })],
    columns: [
      column('Wanted', '.spec.replicas', 'Number of VMs that the pool keeps.', 'integer'),
      column('VMs', '.status.replicas', 'Number of VMs that nobody has claimed.', 'integer'),
      column('Ready', '.status.readyReplicas', 'Number of VMs that are Ready.', 'integer'),
      column('Stale', '.status.staleReplicas', 'Number of VMs of an earlier template or image.', 'integer'),
      column('Claimed', '.status.claimedTotal', 'Number of VMs that were claimed.', 'integer'),
      conditionColumn('Reason', 'Ready', 'reason'),
      AGE_COLUMN,
      wide(column('Mode', '.spec.mode', 'Claim (when empty) or OneShot.')),
      wide(column('Image', '.spec.template.spec.image', 'Image of the VMs.')),
      wide(column('Config', '.spec.template.spec.configRef.name', 'VMConfig of the VMs.')),
      wide(conditionColumn('Cached', 'ImageCached', 'status')),
      wide(conditionColumn('Message', 'Ready', 'message')),
    ],
  };
}
