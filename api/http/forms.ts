/** The schemas of the forms of the console. They are made from the schemas with which the server checks the requests of these forms. */
import * as z from 'zod';
import { type DisplayDpiMaximum, VM_FIELD_ROWS } from '../v1alpha1/fields.ts';
import { POOL_REPLICAS_MAXIMUM } from '../v1alpha1/poolmembers.ts';
import { fieldSchema } from '../v1alpha1/template.ts';
import { whole } from './request.ts';
import { tokenRequestSchema } from './serviceaccount.ts';
import { vmDeployBody } from './vm.ts';
import { vmClaimBody, vmClaimQuery } from './vmpool.ts';
import { vmSnapshotRequestSchema } from './vmsnapshot.ts';

/** Rows of the fields that users can change after the creation of a VM. */
const CHANGEABLE = VM_FIELD_ROWS.filter(({ isMutable }) => isMutable === true);
const CHANGEABLE_NAMES = CHANGEABLE.map(({ name }) => name);

/** Returns the schema of the fields of a VM that users can change. Each field is optional. */
function vmChangeSchema(dpiMaximum: DisplayDpiMaximum) {
  return z.object(
    Object.fromEntries(CHANGEABLE.map((row) => [row.name, fieldSchema(row, dpiMaximum).optional()])),
  );
}

/** Returns the schema of a request that changes fields of a VM. */
export function vmPatchSchema(dpiMaximum: DisplayDpiMaximum) {
  return z
    .object({
      generation: z.int().min(1).meta({ description: 'Generation of the VM that the user has seen.' }),
      set: vmChangeSchema(dpiMaximum).optional(),
      remove: z.array(z.enum(CHANGEABLE_NAMES)).max(CHANGEABLE_NAMES.length).optional(),
    })
    .refine(({ set = {}, remove = [] }) => Object.keys(set).length + remove.length > 0, {
      error: 'must have at least one field to set or to remove',
      path: ['set'],
    });
}
export type VMPatch = z.infer<ReturnType<typeof vmPatchSchema>>;

/** Request that changes the number of VMs of a pool. */
export const poolPatchSchema = z.object({
  replicas: whole(0, POOL_REPLICAS_MAXIMUM).meta({ description: 'Number of VMs that the pool keeps.' }),
});

/** Returns the JSON Schemas of the forms by their names. */
export function formSchemas(dpiMaximum: DisplayDpiMaximum): Record<string, object> {
  const forms = {
    deploy: vmDeployBody(dpiMaximum),
    change: vmChangeSchema(dpiMaximum),
    claim: vmClaimBody.extend(vmClaimQuery.shape),
    scale: poolPatchSchema,
    snapshot: vmSnapshotRequestSchema,
    token: z.object({ duration: tokenRequestSchema.shape.duration }),
  };
  return Object.fromEntries(Object.entries(forms).map(([name, schema]) => [name, jsonSchema(schema)]));
}

/** Returns the JSON Schema without the rules for the API server. */
function jsonSchema(schema: z.ZodType): object {
  const { $schema: _, ...content } = z.toJSONSchema(schema, {
    io: 'input',
    unrepresentable: 'any',
    override: ({ jsonSchema: part }) => {
      for (const key of Object.keys(part).filter((one) => one.startsWith('x-'))) {
        delete (part as Record<string, unknown>)[key];
      }
    },
  });
  return content;
}
