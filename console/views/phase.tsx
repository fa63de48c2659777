/** The phase of a machine: its colour is never the only sign. */
import { toneOf } from '../model/vms.ts';

export function Phase({ phase }: { readonly phase: string }) {
  return <span class={`phase tone-${toneOf(phase)}`}>{phase}</span>;
}
