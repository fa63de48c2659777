/** Fills in the values that the spec of an Emulator leaves out. */
import type { EmulatorSpec } from '../../api/v1alpha1/emulator.ts';
import { EMULATOR_DEFAULTS } from '../../api/v1alpha1/emulatordefaults.ts';

export type ResolvedSpec = { readonly [Field in keyof EmulatorSpec]-?: NonNullable<EmulatorSpec[Field]> };

export function resolveSpec(spec: EmulatorSpec): ResolvedSpec {
  // The API server stores no undefined fields, so an undefined field of the spec cannot replace a default here.
  return { ...EMULATOR_DEFAULTS, ...spec } as ResolvedSpec;
}
