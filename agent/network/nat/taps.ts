/** Remembers two kinds of taps: taps that a hypervisor has open now, and taps that were deleted while a hypervisor had them open. */
import type { Links } from './observe.ts';
import type { Repair } from './plan.ts';

export class TapWatch {
  readonly #lost = new Set<string>();
  #held: ReadonlySet<string> = new Set();

  /** Taps that were deleted while a hypervisor had them open. Such a hypervisor has no network until its next start. */
  get lost(): ReadonlySet<string> {
    return this.#lost;
  }

  /**
   * Updates the lists after repairs. `taps` are the taps of all machines. `done` are the successful repairs. `links` are the devices that
   * exist after the repairs.
   */
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

  /** Removes a tap from {@link lost}, because no hypervisor has the tap open any more. */
  forget(tap: string): void {
    this.#lost.delete(tap);
  }
}
