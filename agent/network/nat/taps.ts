/** Remembers which taps hypervisors hold, and which taps they lost. */
import type { Links } from './observe.ts';
import type { Repair } from './plan.ts';

export class TapWatch {
  readonly #lost = new Set<string>();
  #held: ReadonlySet<string> = new Set();

  /** Taps that were deleted while a hypervisor held them. The hypervisor stays cut off until its next start. */
  get lost(): ReadonlySet<string> {
    return this.#lost;
  }

  /** Takes the taps of all machines, the repairs that were done, and the links after them or after a failed repair. */
  notice(taps: readonly string[], done: readonly Repair[], links: Links): void {
    const created = new Set(done.flatMap((repair) => (repair.kind === 'createTap' ? [repair.device] : [])));
    const held = new Set<string>();
    for (const tap of taps) {
      const link = links.get(tap);
      if (link?.kind === 'tun' && link.carrier) {
        held.add(tap);
        this.#lost.delete(tap);
      } else if (this.#held.has(tap) && (link?.kind !== 'tun' || created.has(tap))) {
        this.#lost.add(tap);
      }
    }
    this.#held = held;
  }

  /** Forgets a lost tap, because no hypervisor holds it any more. */
  forget(tap: string): void {
    this.#lost.delete(tap);
  }
}
