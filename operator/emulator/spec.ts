/** Fills in the values that the spec of an Emulator leaves out. */
import { EMULATOR_DEFAULTS, type EmulatorSpec } from '../../api/v1alpha1/emulator.ts';

export type ResolvedSpec = { readonly [Field in keyof EmulatorSpec]-?: NonNullable<EmulatorSpec[Field]> };

export function resolveSpec(spec: EmulatorSpec): ResolvedSpec {
  // The API server stores no undefined fields, so a field of the spec never hides a default.
  return { ...EMULATOR_DEFAULTS, ...spec } as ResolvedSpec;
}
