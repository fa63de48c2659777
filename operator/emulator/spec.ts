/** Fills in the values that the spec of an Emulator leaves out. */
import type { EmulatorSpec } from '../../api/v1alpha1/emulator.ts';
import { EMULATOR_DEFAULTS } from '../../api/v1alpha1/emulatordefaults.ts';

export type ResolvedSpec = { readonly [Field in keyof EmulatorSpec]-?: NonNullable<EmulatorSpec[Field]> };

export function resolveSpec(spec: EmulatorSpec): ResolvedSpec {
  // This expression keeps the default of each field that the spec omits. A field with the value undefined would replace the default, but
  // the API server stores no such fields.
  return { ...EMULATOR_DEFAULTS, ...spec } as ResolvedSpec;
}
