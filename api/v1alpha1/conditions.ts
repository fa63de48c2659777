/** Conditions in the shape of `metav1.Condition`. */
import * as z from 'zod';
import { choice, count, report, text, timestamp } from './schema.ts';

/** As in metav1.Condition: an optional DNS prefix and a name. */
const CONDITION_TYPE =
  /^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$/;

const conditionSchema = z
  .object({
    type: text('Type of the condition, for example Ready.', 316, CONDITION_TYPE),
    status: choice('True, False or Unknown.', ['True', 'False', 'Unknown']),
    reason: text(
      'One word for machines: why the condition has its status.',
      1024,
      /^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$/,
    ),
    message: report('A sentence for people; may be empty.', 32_768),
    lastTransitionTime: timestamp('When the status last changed.'),
    observedGeneration: z.exactOptional(
      count('The generation of the object this condition was computed from.', Number.MAX_SAFE_INTEGER),
    ),
  })
  .meta({ description: 'One observation of the object’s state.' });
/**
 * One condition of any kind.
 * @public
 */
export type Condition = z.infer<typeof conditionSchema>;

const conditionsSchema = z
  .array(conditionSchema)
  .max(32)
  .meta({
    description: 'Observations of the object’s state, one for each type.',
    'x-kubernetes-list-type': 'map',
    'x-kubernetes-list-map-keys': ['type'],
  });

/** What every kind's status has. */
export function commonStatus() {
  return {
    observedGeneration: count(
      'The generation of the spec that this status speaks of.',
      Number.MAX_SAFE_INTEGER,
    ).optional(),
    conditions: conditionsSchema.optional(),
  };
}
