/**
 * Finds nftables rules of other programs that drop a machine's packets, but never changes these rules. Berth cannot overrule these rules,
 * because an accept in one table does not cancel a drop in another. A rule is reported only if it drops all packets of a machine in one
 * direction. A rule that also tests, for example, a port or the state of a connection counts as an intended filter and is not reported.
 */
import { type Answer, matchExpression, type Packet } from './rulematch.ts';
import { type RulesetEntry, tableOf } from '../nftables.ts';

export interface Chain {
  name: string;
  /** nftables hook of a base chain; undefined for all other chains. */
  hook: string | undefined;
  devices: string[];
  policy: string | undefined;
  rules: Expression[][];
}

export type Expression = Record<string, unknown>;

export interface Table {
  name: string;
  family: string;
  chains: Map<string, Chain>;
  /** Elements of sets and maps. An element of a map is a list of a key and a value. */
  sets: Map<string, unknown[]>;
}

/** Properties of a machine that nftables rules can match. The probe, which sends test packets, has the same properties. */
export interface Subject {
  address: string;
  macAddress: string;
  port: string;
  bridge: string;
}

type Verdict = 'drop' | 'accept' | 'next';

/**
 * Largest depth to which nested nftables chains are followed. The kernel allows less depth, so only an endless loop after a parsing error
 * can reach this limit.
 */
export const MAXIMUM_DEPTH = 20;

function textList(value: unknown): string[] {
  if (typeof value === 'string') {
    return [value];
  }
  return Array.isArray(value) ? value.filter((one) => typeof one === 'string') : [];
}

function addEntry(table: Table, kind: string, body: Record<string, unknown>): void {
  const name = String(body['name']);
  if (kind === 'chain') {
    const hook = body['hook'] as string | undefined;
    const policy = body['policy'] as string | undefined;
    table.chains.set(name, { name, hook, devices: textList(body['dev']), policy, rules: [] });
  } else if (kind === 'rule') {
    table.chains.get(String(body['chain']))?.rules.push(body['expr'] as Expression[]);
  } else if (kind === 'set' || kind === 'map') {
    table.sets.set(name, (body['elem'] as unknown[] | undefined) ?? []);
  }
}

/** Returns the tables of the ruleset without Berth's own tables. */
export function foreignTables(ruleset: readonly RulesetEntry[], ours: readonly string[]): Table[] {
  const tables = new Map<string, Table>();
  for (const entry of ruleset) {
    const name = tableOf(entry);
    const [kind, body] = Object.entries(entry)[0] ?? [];
    if (name === undefined || kind === undefined || body === undefined || ours.includes(name)) {
      continue;
    }
    const table = tables.get(name) ?? {
      name,
      family: String(body['family']),
      chains: new Map(),
      sets: new Map(),
    };
    tables.set(name, table);
    addEntry(table, kind, body);
  }
  return [...tables.values()];
}

/** Returns example packets of a machine at an nftables hook: packets that the machine sends and packets that it receives. */
function packetsAt(family: string, hook: string, subject: Subject): Packet[] {
  const sent: Packet = { saddr: subject.address, etherSource: subject.macAddress };
  const received: Packet = { daddr: subject.address };
  if (family === 'bridge' || family === 'netdev') {
    if (hook === 'ingress' || hook === 'prerouting' || hook === 'input') {
      return [{ ...sent, iifname: subject.port }];
    }
    return [{ ...received, oifname: subject.port, etherDestination: subject.macAddress }];
  }
  if (hook === 'prerouting') {
    return [{ ...sent, iifname: subject.bridge }];
  }
  if (hook === 'forward' || hook === 'postrouting') {
    return [
      { ...sent, iifname: subject.bridge },
      { ...received, oifname: subject.bridge },
    ];
  }
  return [];
}

interface Outcome {
  verdict: string;
  target: string | undefined;
}

/** Returns whether the expression is the target REJECT of iptables, which nft cannot translate. */
function isIptablesReject({ xt }: Expression): boolean {
  const { type, name } = (xt ?? {}) as { type?: string; name?: string };
  return type === 'target' && name === 'REJECT';
}

/** Returns the verdict of a rule; undefined if the rule has none. */
export function verdictOf(expressions: readonly Expression[]): Outcome | undefined {
  for (const expression of expressions) {
    const [kind, body] = Object.entries(expression)[0] ?? [];
    if (kind === undefined) {
      continue;
    }
    if (isIptablesReject(expression)) {
      return { verdict: 'reject', target: undefined };
    }
    if (['accept', 'drop', 'reject', 'return', 'jump', 'goto'].includes(kind)) {
      return { verdict: kind, target: (body as { target?: string } | null)?.target };
    }
  }
  return undefined;
}

function ruleMatches(table: Table, expressions: readonly Expression[], packet: Packet): Answer {
  let answer: Answer = 'yes';
  for (const expression of expressions) {
    const one = matchExpression(expression, packet, table.sets);
    if (one === 'no') {
      return 'no';
    }
    if (one === 'maybe') {
      answer = 'maybe';
    }
  }
  return answer;
}

/** Returns the verdict of a matching nftables rule; undefined if the next rule decides. */
function follow(table: Table, found: Outcome, packet: Packet, depth: number): Verdict | undefined {
  if (found.verdict === 'drop' || found.verdict === 'reject') {
    return 'drop';
  }
  if (found.verdict === 'accept') {
    return 'accept';
  }
  if (found.verdict === 'return') {
    return 'next';
  }
  const target = table.chains.get(found.target ?? '');
  const verdict = target && depth < MAXIMUM_DEPTH ? walk(table, target, packet, depth + 1) : 'next';
  return verdict === 'next' && found.verdict === 'jump' ? undefined : verdict;
}

/** Returns the verdict of a chain for the packet. Skips a rule if it is unknown whether the rule matches the packet. */
function walk(table: Table, chain: Chain, packet: Packet, depth = 0): Verdict {
  for (const expressions of chain.rules) {
    const found = verdictOf(expressions);
    const applies = found && ruleMatches(table, expressions, packet) === 'yes';
    const verdict = applies ? follow(table, found, packet, depth) : undefined;
    if (verdict !== undefined) {
      return verdict;
    }
  }
  return 'next';
}

function stops(table: Table, chain: Chain, subject: Subject): boolean {
  const { hook } = chain;
  if (hook === undefined) {
    return false;
  }
  if (
    table.family === 'netdev' &&
    !chain.devices.some((one) => one === subject.port || one === subject.bridge)
  ) {
    return false;
  }
  return packetsAt(table.family, hook, subject).some((packet) => drops(table, chain, packet));
}

function drops(table: Table, chain: Chain, packet: Packet): boolean {
  const verdict = walk(table, chain, packet);
  return verdict === 'drop' || (verdict === 'next' && chain.policy === 'drop');
}

/** Returns the names of base chains that drop the machine's or probe's packets, for example `table inet other, chain forward`. */
export function chainsStopping(tables: readonly Table[], subject: Subject): string[] {
  return chainsOf(tables, (table, chain) => stops(table, chain, subject));
}

/**
 * Returns the names of base chains that perhaps drop the packets of a machine or probe to a UDP port of the host itself. The result also
 * names chains that accept some of these packets, for example packets of known connections. So use the result only to explain a loss that a
 * test has shown.
 */
export function chainsStoppingInput(
  tables: readonly Table[],
  { address, bridge }: Subject,
  port: number,
): string[] {
  const packet: Packet = { saddr: address, iifname: bridge, protocol: 'udp', dport: String(port) };
  return chainsOf(
    tables,
    (table, chain) =>
      chain.hook === 'input' && ['inet', 'ip'].includes(table.family) && drops(table, chain, packet),
  );
}

function chainsOf(tables: readonly Table[], isMeant: (table: Table, chain: Chain) => boolean): string[] {
  return tables.flatMap((table) =>
    [...table.chains.values()]
      .filter((chain) => isMeant(table, chain))
      .map((chain) => `table ${table.name}, chain ${chain.name}`),
  );
}

export type ForeignTables = readonly Table[];
