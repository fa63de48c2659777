import { expect, test } from 'vitest';
import { chainsStopping, foreignTables, type Subject } from './foreignrules.ts';
import type { RulesetEntry } from '../nftables.ts';

const MACHINE: Subject = {
  address: '10.213.3.7',
  macAddress: '52:54:00:00:00:01',
  port: 'bt0001',
  bridge: 'berth0',
};

const field = (protocol: string, name: string) => ({ payload: { protocol, field: name } });
const meta = (key: string) => ({ meta: { key } });
const match = (left: unknown, right: unknown, op = '==') => ({ match: { op, left, right } });
const saddr = (right: unknown, op = '==') => match(field('ip', 'saddr'), right, op);
const DROP = { drop: null };
const ACCEPT = { accept: null };

/** Returns a ruleset in the form of nft: one foreign table with one base chain, and the entries of `more`. */
function ruleset(
  rules: object[][],
  o: { hook?: string; family?: string; policy?: string; more?: RulesetEntry[] } = {},
) {
  const { hook = 'forward', family = 'inet', policy = 'accept', more = [] } = o;
  const place = { family, table: 'other' };
  return [
    { metainfo: { version: '1.0.6' } },
    { table: { family, name: 'other' } },
    { chain: { ...place, name: 'theirs', type: 'filter', hook, prio: 0, policy } },
    ...more,
    ...rules.map((expr) => ({ rule: { ...place, chain: 'theirs', expr } })),
  ];
}

function found(entries: RulesetEntry[]): string[] {
  return chainsStopping(foreignTables(entries, ['inet berth', 'bridge berth']), MACHINE);
}

const STOPPED = ['table inet other, chain theirs'];

test.each([
  ['its address', [saddr('10.213.3.7'), DROP]],
  ['a subnet with it', [saddr({ prefix: { addr: '10.213.0.0', len: 20 } }), DROP]],
  ['a range with it', [saddr({ range: ['10.213.3.0', '10.213.3.9'] }), DROP]],
  [
    'a set with it',
    [saddr({ set: ['10.0.0.1', '10.213.3.7'] }), { counter: { packets: 1, bytes: 2 } }, DROP],
  ],
  ['everything but another', [saddr('10.0.0.1', '!='), DROP]],
  ['its bridge', [match(meta('oifname'), 'berth0'), { reject: { type: 'icmp' } }]],
  ['names like its bridge', [match(meta('iifname'), 'berth*'), DROP]],
  ['every packet', [DROP]],
])('a rule that drops %s stops the machine', (_what, rule) => {
  expect(found(ruleset([rule]))).toEqual(STOPPED);
});

test.each([
  ['another address', [saddr('10.213.3.8'), DROP]],
  ['everything but it', [match(field('ip', 'daddr'), '10.213.3.7'), ACCEPT]],
  ['a port of it', [saddr('10.213.3.7'), match(field('tcp', 'dport'), 25), DROP]],
  ['one destination', [saddr('10.213.3.7'), match(field('ip', 'daddr'), '192.0.2.9'), DROP]],
  ['a state', [match({ ct: { key: 'state' } }, 'invalid', 'in'), DROP]],
  ['what an extension of iptables says', [{ xt: { type: 'match', name: 'physdev' } }, DROP]],
  ['IPv6', [match(meta('nfproto'), 'ipv6'), DROP]],
])('a rule about %s does not', (_what, rule) => {
  expect(found(ruleset([rule]))).toEqual([]);
});

test('a policy of drop stops it, unless it is accepted before', () => {
  expect(found(ruleset([], { policy: 'drop' }))).toEqual(STOPPED);
  const both = [
    [saddr('10.213.3.7'), ACCEPT],
    [match(field('ip', 'daddr'), '10.213.3.7'), ACCEPT],
  ];
  expect(found(ruleset(both, { policy: 'drop' }))).toEqual([]);
});

test('an accepted packet is not stopped by a later rule of the same chain', () => {
  const accepted = [
    [match(meta('iifname'), 'berth0'), ACCEPT],
    [saddr('10.213.3.7'), DROP],
  ];
  expect(found(ruleset(accepted))).toEqual([]);
});

test('named sets and chains jumped to are followed', () => {
  const place = { family: 'inet', table: 'other' };
  const more = [
    { set: { ...place, name: 'bad', type: 'ipv4_addr', elem: ['10.213.3.7'] } },
    { chain: { ...place, name: 'more' } },
    { rule: { ...place, chain: 'more', expr: [saddr('@bad'), DROP] } },
  ];
  expect(found(ruleset([[{ jump: { target: 'more' } }]], { more }))).toEqual(STOPPED);
  expect(found(ruleset([[saddr('10.0.0.1'), { jump: { target: 'more' } }]], { more }))).toEqual([]);
  expect(found(ruleset([[{ return: null }], [{ goto: { target: 'more' } }]], { more }))).toEqual([]);
});

test('chains that jump to each other end', () => {
  const place = { family: 'inet', table: 'other' };
  const more = [
    { chain: { ...place, name: 'more' } },
    { rule: { ...place, chain: 'more', expr: [{ jump: { target: 'theirs' } }] } },
  ];
  expect(found(ruleset([[{ jump: { target: 'more' } }]], { more }))).toEqual([]);
  expect(found(ruleset([[{ jump: { target: 'more' } }], [DROP]], { more }))).toEqual(STOPPED);
});

test('what the host itself sends and receives is no matter of the guests', () => {
  expect(found(ruleset([[DROP]], { hook: 'input' }))).toEqual([]);
  expect(found(ruleset([[DROP]], { hook: 'output', policy: 'drop' }))).toEqual([]);
});

test('in the bridge family a machine is known by its port and card', () => {
  const rule = [match(meta('iifname'), 'bt0001'), DROP];
  expect(found(ruleset([rule], { family: 'bridge', hook: 'prerouting' }))).toEqual([
    'table bridge other, chain theirs',
  ]);
  const card = [match(field('ether', 'daddr'), '52:54:00:00:00:01'), DROP];
  expect(found(ruleset([card], { family: 'bridge', hook: 'output' }))).toHaveLength(1);
});

test('our own tables are not looked at', () => {
  const own = ruleset([[DROP]]).map(
    (entry) => JSON.parse(JSON.stringify(entry).replaceAll('other', 'berth')) as RulesetEntry,
  );
  expect(found(own)).toEqual([]);
});
