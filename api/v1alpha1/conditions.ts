/** Conditions with the fields of `metav1.Condition`. */
import * as z from 'zod';
import { choice, count, documented, text, timestamp } from './schema.ts';

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
    message: text('A sentence for people.', 32_768),
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
export type StatusCondition = z.infer<typeof conditionSchema>;

const conditionsSchema = z
  .array(conditionSchema)
  .max(32)
  .meta({
    description: 'Conditions of the object, one for each type of condition.',
    'x-kubernetes-list-type': 'map',
    'x-kubernetes-list-map-keys': ['type'],
  });

/**
 * Status of an object that the operator has not seen. The API server stores it when the object is created. Without it, kstatus (Helm, Flux)
 * would count such an object as finished. In the code, a status with only this value counts like no status.
 */
export const UNSEEN_STATUS = { observedGeneration: -1 } as const;

/** Returns the schemas of the status fields that all kinds with a status have. */
export function commonStatus() {
  return {
    observedGeneration: z
      .int()
      .min(UNSEEN_STATUS.observedGeneration)
      .meta(
        documented(
          'Value of metadata.generation from which the operator computed this status. It is -1 until the operator has seen the object.',
        ),
      )
      .optional(),
    conditions: conditionsSchema.optional(),
  };
}
