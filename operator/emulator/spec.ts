/** Fills in the values that the spec of an Emulator leaves out. */
import type { EmulatorSpec } from '../../api/v1alpha1/emulator.ts';
import { EMULATOR_DEFAULTS } from '../../api/v1alpha1/emulatordefaults.ts';

export type ResolvedSpec = { readonly [Field in keyof EmulatorSpec]-?: NonNullable<EmulatorSpec[Field]> };

export function resolveSpec(spec: EmulatorSpec): ResolvedSpec {
  // If the spec omits a field, the default of this field stays. A field with the value undefined would replace the default, but the API
  // server never stores such a field.
  return { ...EMULATOR_DEFAULTS, ...spec } as ResolvedSpec;
}
