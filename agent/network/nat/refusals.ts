/** Counts the packets that the rules drop because a guest has reached its limit of connections. */
import { countedPackets, type RulesetEntry } from '../nftables.ts';
import { refusalCounter } from './rulewords.ts';

export class Refusals {
  readonly #tables: readonly string[];
  /** Numbers of refused packets at the last count. The key is the name of the nftables counter. */
  #last: ReadonlyMap<string, number> = new Map();

  constructor(tables: readonly string[]) {
    this.#tables = tables;
  }

  /**
   * Returns the numbers of refused packets since the last count. The key is the machine's uid. A reload of the rules sets all counters to
   * 0.
   *
   * @param devices taps and devices of namespaces; the key is the machine's uid.
   */
  count(ruleset: readonly RulesetEntry[], devices: ReadonlyMap<string, string>): Record<string, number> {
    const before = this.#last;
    this.#last = new Map(this.#tables.flatMap((table) => [...countedPackets(ruleset, table)]));
    const refused: Record<string, number> = {};
    for (const [uid, device] of devices) {
      const name = refusalCounter(device);
      const [then, now] = [before.get(name) ?? 0, this.#last.get(name) ?? 0];
      const since = now < then ? now : now - then;
      if (since > 0) {
        refused[uid] = since;
      }
    }
    return refused;
  }
}
