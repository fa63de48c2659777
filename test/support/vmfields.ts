/** Values for fields of VMs, for tests of rules that hold for each field of the table in api/v1alpha1/fields.ts. */
import { VM_FIELD_ROWS, type VMField } from '../../api/v1alpha1/fields.ts';

/**
 * Returns a value for each number and choice of the table that `isWanted` takes. With `at` 0 and 1, the values of a field differ. Tests list
 * values of other fields themselves.
 */
export function sampleValues(isWanted: (row: VMField) => boolean, at: 0 | 1): Record<string, unknown> {
  return Object.fromEntries(
    VM_FIELD_ROWS.filter(isWanted).flatMap((row): [string, unknown][] => {
      if (row.type === 'integer') {
        return [[row.name, row.minimum + at]];
      }
      return row.type === 'choice' ? [[row.name, row.values[at]]] : [];
    }),
  );
}
