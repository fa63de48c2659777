/** ISO: an optical disc that VMs boot from. */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import type { ApiObject, KindContent } from './kind.ts';
import { documented, oneOf } from './schema.ts';
import {
  descriptionSchema,
  fileRequestSchema,
  SOURCE_IMMUTABLE,
  storedColumns,
  storedSources,
  storedStatus,
  uploadSchema,
} from './source.ts';
import { architectureSchema, imagePullSecretsSchema, osSchema } from './template.ts';

const sourceFields = {
  ...storedSources('ISO'),
  upload: uploadSchema.optional(),
};

const isoSourceSchema = z
  .object(sourceFields)
  .meta(
    documented(
      'Source of the ISO. Exactly one field must be set. Immutable.',
      oneOf(Object.keys(sourceFields)),
    ),
  );

const isoSpecSchema = z
  .object({
    description: descriptionSchema.optional(),
    source: isoSourceSchema,
    architecture: architectureSchema.optional(),
    os: osSchema.optional(),
    imagePullSecrets: imagePullSecretsSchema.optional(),
    download: fileRequestSchema.optional(),
  })
  .meta(documented('Desired ISO.', SOURCE_IMMUTABLE));
export type ISOSpec = z.infer<typeof isoSpecSchema>;

export const isoStatusSchema = z
  .object({ ...storedStatus(), ...commonStatus() })
  .meta({ description: 'Last observed state of the ISO, written by the operator.' });
export type ISOStatus = z.infer<typeof isoStatusSchema>;
export type ISO = ApiObject<ISOSpec, ISOStatus>;

export const ISO_KIND: KindContent = {
  shortNames: ['iso'],
  description: 'An optical disc from which VMs boot.',
  spec: isoSpecSchema,
  status: isoStatusSchema,
  rules: [],
  columns: storedColumns('Size of the disc.'),
};
