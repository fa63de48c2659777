/** Finds the nftables tables that an earlier agent loaded for this network, when the configuration gave them another name. */
import { isDeepStrictEqual } from 'node:util';
import { namesIn, type RulesetEntry } from '../nftables.ts';
import { type Layout, namespacesTable } from './layout.ts';

/**
 * Returns the names of the former tables in nft, for example `inet berth`. These tables must be removed, because they drop the packets of
 * guests that they do not know. The function recognises a former table by its rule about the taps of this network. The names of these taps
 * derive from the bridge, so no other network has this rule.
 */
export function formerTables(layout: Layout, ruleset: readonly RulesetEntry[]): string[] {
  const match = { op: '==', left: { meta: { key: 'iifname' } }, right: `${layout.tapPrefix}*` };
  const aboutTaps = [{ match }, { jump: { target: 'from_guest' } }];
  const names = ruleset.flatMap(({ rule }) =>
    rule?.family === 'bridge' && isDeepStrictEqual(rule['expr'], aboutTaps) ? [rule.table ?? ''] : [],
  );
  const former = names.filter((name) => name !== layout.table);
  return former
    .flatMap((name) => [`inet ${name}`, `bridge ${name}`, `inet ${namespacesTable(name)}`])
    .filter((table) => namesIn(ruleset, table, 'table').length > 0);
}
