import { expect, test } from 'vitest';
import { natLayout } from '../../../test/fixtures/natlayout.ts';
import type { RulesetEntry } from '../nftables.ts';
import { formerTables } from './state.ts';

const LAYOUT = natLayout({ bridge: 'berth0', table: 'berth' });

function table(family: string, name: string): RulesetEntry {
  return { table: { family, name } };
}

/** Returns the rule by which a table filters the packets of taps with this prefix, as nft prints it. */
function ruleAbout(taps: string, name: string, family = 'bridge'): RulesetEntry {
  const match = { op: '==', left: { meta: { key: 'iifname' } }, right: `${taps}*` };
  return {
    rule: { family, table: name, chain: 'prerouting', expr: [{ match }, { jump: { target: 'from_guest' } }] },
  };
}

test('the tables of an earlier agent with another `network.table` are former tables', () => {
  const former = [table('inet', 'nat'), table('bridge', 'nat'), table('inet', 'nat-namespaces')];
  const own = [table('inet', 'berth'), table('bridge', 'berth'), ruleAbout(LAYOUT.tapPrefix, 'berth')];
  const ruleset = [...former, ruleAbout(LAYOUT.tapPrefix, 'nat'), ...own];
  expect(formerTables(LAYOUT, ruleset)).toEqual(['inet nat', 'bridge nat', 'inet nat-namespaces']);
  expect(formerTables(LAYOUT, [...former.slice(0, 2), ...ruleset.slice(3)])).toEqual([
    'inet nat',
    'bridge nat',
  ]);
});

test('tables of other programs and of other networks are not former tables', () => {
  const { tapPrefix } = natLayout({ bridge: 'berth1', table: 'berth1' });
  const drop: RulesetEntry = {
    rule: { family: 'bridge', table: 'mine', chain: 'from_guest', expr: [{ drop: null }] },
  };
  const others = [
    table('inet', 'berth1'),
    table('bridge', 'berth1'),
    ruleAbout(tapPrefix, 'berth1'),
    table('inet', 'nat'),
    ruleAbout(LAYOUT.tapPrefix, 'nat', 'inet'),
    table('bridge', 'mine'),
    drop,
  ];
  expect(formerTables(LAYOUT, others)).toEqual([]);
});
