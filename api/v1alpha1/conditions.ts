/** Conditions with the fields of `metav1.Condition`. */
import * as z from 'zod';
import { choice, count, report, text, timestamp } from './schema.ts';

/** Pattern of a condition type in `metav1.Condition`: an optional DNS prefix and a name. */
const CONDITION_TYPE =
  /^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$/;

const conditionSchema = z
  .object({
    type: text('Type of the condition, for example Ready.', 316, CONDITION_TYPE),
    status: choice('True, False or Unknown.', ['True', 'False', 'Unknown']),
    reason: text(
      'Reason for the status, as one word that programs can read.',
      1024,
      /^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$/,
    ),
    message: report('A sentence for people. It can be empty.', 32_768),
    lastTransitionTime: timestamp('Time of the last change of the status.'),
    observedGeneration: z.exactOptional(
      count(
        'Value of metadata.generation from which the operator computed the condition.',
        Number.MAX_SAFE_INTEGER,
      ),
    ),
  })
  .meta({ description: 'One observed property of the object, for example Ready.' });
/**
 * A condition of any type.
 * @public
 */
export type Condition = z.infer<typeof conditionSchema>;

const conditionsSchema = z
  .array(conditionSchema)
  .max(32)
  .meta({
    description: 'Conditions of the object, one for each type of condition.',
    'x-kubernetes-list-type': 'map',
    'x-kubernetes-list-map-keys': ['type'],
  });

/** Returns the schemas of the status fields that all kinds have. */
export function commonStatus() {
  return {
    observedGeneration: count(
      'Value of metadata.generation from which the operator computed this status.',
      Number.MAX_SAFE_INTEGER,
    ).optional(),
    conditions: conditionsSchema.optional(),
  };
}
