/**
 * Evaluates nftables rules (in the JSON form of nft) for a packet: which rule decides about it. Some properties of the packet and some
 * conditions of the rules can be unknown.
 */
import { isIPv4 } from 'node:net';
import { toNumber } from './ipv4.ts';

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

/**
 * Largest depth to which nested nftables chains are followed. The kernel allows less depth, so only an endless loop after a parsing error
 * can reach this limit.
 */
const MAXIMUM_DEPTH = 20;

/** Conditions of iptables that nft cannot read. Rules that publish a port have some of them. */
const HIDDEN_CONDITIONS = new Set(['addrtype', 'multiport', 'statistic']);

/** Targets of iptables that lead packets elsewhere. */
const TRANSLATIONS = new Set(['DNAT', 'REDIRECT']);

/** Lookup of a packet's properties in a map of nftables. */
interface Lookup {
  key?: unknown;
  data?: string | { set?: unknown[] };
}

/** Selectors of nftables that spread packets over several targets. Each target counts. */
const SPREADING = ['numgen', 'jhash', 'symhash'];

/** Statements of a rule that the walk reads, in the form in which nft prints them. */
interface Statements {
  match?: { left?: unknown };
  xt?: { type: string; name: string };
  vmap?: Lookup;
  dnat?: { family?: string; addr?: { map?: Lookup } };
}

/** What a walk through rules seeks. */
type Sought =
  /** A verdict that drops the packet. A rule counts only if it certainly applies. */
  | 'drop'
  /**
   * A rule that leads the packet elsewhere. Expressions that compare nothing, for example a limit, count as met. Some conditions of iptables
   * that nft cannot read count as met too, but then only if a rule on the way names the port.
   */
  | 'translation';

/** Facts about the rules that a packet has passed so far. */
interface Way {
  /** Whether a rule has named the port of the packet. */
  isNamed: boolean;
  /** Whether a rule has a condition that nft cannot read. */
  isHidden: boolean;
  /** Number of jumps to other chains. */
  depth: number;
}

/** Result of rules for a packet: a verdict, or the chain that leads the packet elsewhere. */
type End = 'drop' | 'accept' | 'return' | { chain: string };

/**
 * Returns what the rules of a base chain do with a packet: `drop`, `accept`, or the name of the chain that leads the packet elsewhere. The
 * result is undefined if no rule decides, so that the policy of the chain applies.
 */
export function evaluate(
  table: Table,
  chain: Chain,
  packet: Packet,
  sought: Sought,
): Exclude<End, 'return'> | undefined {
  return new Walk(table, packet, sought).through(chain, { isNamed: false, isHidden: false, depth: 0 });
}

/** Way of a packet through the chains of one table. */
class Walk {
  readonly #table: Table;
  readonly #packet: Packet;
  readonly #sought: Sought;

  constructor(table: Table, packet: Packet, sought: Sought) {
    this.#table = table;
    this.#packet = packet;
    this.#sought = sought;
  }

  /** Returns the result of a chain. Undefined means that the chain has no result, so the rules that follow it apply. */
  through(chain: Chain, way: Way): Exclude<End, 'return'> | undefined {
    for (const rule of chain.rules) {
      const end = this.#follow(chain, rule, way);
      if (end !== undefined) {
        return end === 'return' ? undefined : end;
      }
    }
    return undefined;
  }

  /** Returns the result of a rule; undefined if the next rule decides. */
  #follow(chain: Chain, rule: readonly Expression[], before: Way): End | undefined {
    let way: Way | undefined = before;
    for (const expression of rule) {
      way = this.#past(expression, way);
      if (way === undefined) {
        return undefined;
      }
      const end = this.#result(chain, expression, way);
      if (end !== 'next') {
        return end;
      }
    }
    return undefined;
  }

  /** Returns the way past an expression; undefined if the expression is a condition that the packet does not meet. */
  #past(expression: Expression, way: Way): Way | undefined {
    const { match } = expression as Statements;
    if (match === undefined && this.#sought === 'translation') {
      return pastUnread(expression, way);
    }
    const answer = matchExpression(expression, this.#packet, this.#table.sets);
    return answer === 'yes' ? named(way, match?.left) : undefined;
  }

  /** Returns the result of an expression: `next` if the next expression decides, and undefined if the next rule decides. */
  #result(chain: Chain, expression: Expression, way: Way): End | 'next' | undefined {
    const { vmap, dnat } = expression as Statements;
    if (vmap !== undefined) {
      const verdict = this.#lookUp(vmap);
      return verdict === undefined ? undefined : this.#decide(verdict as Expression, named(way, vmap.key));
    }
    const map = dnat?.addr?.map;
    if (map !== undefined) {
      return this.#lookUp(map) === undefined ? undefined : ledBy(chain, named(way, map.key));
    }
    if (this.#sought === 'translation' && isTranslation(expression)) {
      return ledBy(chain, way);
    }
    return verdictOf(expression) === undefined ? 'next' : this.#decide(expression, way);
  }

  /** Returns the result of an expression with a verdict; undefined if the next rule decides. */
  #decide(expression: Expression, way: Way): End | undefined {
    const { verdict, target } = verdictOf(expression) ?? { verdict: 'return', target: undefined };
    if (verdict === 'jump' || verdict === 'goto') {
      const end = this.#jump(target ?? '', way);
      return end === undefined && verdict === 'goto' ? 'return' : end;
    }
    if (way.isHidden) {
      return undefined;
    }
    return verdict === 'reject' ? 'drop' : (verdict as 'drop' | 'accept' | 'return');
  }

  #jump(target: string, way: Way): End | undefined {
    const chain = this.#table.chains.get(target);
    return chain === undefined || way.depth === MAXIMUM_DEPTH
      ? undefined
      : this.through(chain, { ...way, depth: way.depth + 1 });
  }

  /** Returns the map's value for the first key that certainly matches the packet; undefined if there is no such key. */
  #lookUp({ key, data }: Lookup): unknown {
    const pairs = typeof data === 'string' ? this.#table.sets.get(data.slice(1)) : data?.set;
    const selectors = partsOf(key);
    const found = pairs?.find((pair) => {
      const values = Array.isArray(pair) ? partsOf(pair[0]) : [];
      return selectors.every((left, index) => isSpreading(left) || this.#has(left, values[index]));
    });
    return Array.isArray(found) ? found[1] : undefined;
  }

  #has(left: unknown, right: unknown): boolean {
    const match = { op: '==', left, right };
    return matchExpression({ match }, this.#packet, this.#table.sets) === 'yes';
  }
}

/** Returns the way past an expression that is no comparison; undefined if it is a condition that a packet to a port does not meet. */
function pastUnread(expression: Expression, way: Way): Way | undefined {
  const { xt, dnat } = expression as Statements;
  // A rule with the family `ip6` is only for IPv6, but nft prints no condition that says so.
  if (dnat?.family === 'ip6') {
    return undefined;
  }
  if (xt?.type !== 'match' || xt.name === 'comment') {
    return way;
  }
  return HIDDEN_CONDITIONS.has(xt.name) ? { ...way, isHidden: true } : undefined;
}

function ledBy({ name }: Chain, { isNamed, isHidden }: Way): End | undefined {
  return isNamed || !isHidden ? { chain: name } : undefined;
}

/** Returns the way past a condition or lookup with this selector. */
function named(way: Way, selector: unknown): Way {
  return { ...way, isNamed: way.isNamed || isAboutPort(selector) };
}

function isTranslation(expression: Expression): boolean {
  const { xt } = expression as Statements;
  const isOfIptables = xt?.type === 'target' && TRANSLATIONS.has(xt.name);
  return isOfIptables || 'dnat' in expression || 'redirect' in expression;
}

/** Returns the parts of a concatenation in nftables, with or without a comment. Any other value is returned as the only part. */
function partsOf(value: unknown): unknown[] {
  const { concat, elem } = (value ?? {}) as { concat?: unknown[]; elem?: { val: unknown } };
  return concat ?? (elem === undefined ? [value] : partsOf(elem.val));
}

function isSpreading(selector: unknown): boolean {
  return SPREADING.some((name) => name in Object(selector));
}

/** Returns whether a part of the selector is the destination port. */
function isAboutPort(selector: unknown): boolean {
  return partsOf(selector).some((part) => (part as Selector | null)?.payload?.field === 'dport');
}

interface Outcome {
  verdict: string;
  target: string | undefined;
}

/** Returns whether the expression is the target REJECT of iptables, which nft cannot translate. */
function isIptablesReject({ xt }: Statements): boolean {
  return xt?.type === 'target' && xt.name === 'REJECT';
}

/** Returns the verdict of an expression; undefined if the expression has none. */
function verdictOf(expression: Expression): Outcome | undefined {
  const [kind = '', body] = Object.entries(expression)[0] ?? [];
  if (isIptablesReject(expression)) {
    return { verdict: 'reject', target: undefined };
  }
  return ['accept', 'drop', 'reject', 'return', 'jump', 'goto'].includes(kind)
    ? { verdict: kind, target: (body as { target?: string } | null)?.target }
    : undefined;
}

type Answer = 'yes' | 'no' | 'maybe';

/** Packet with its known properties. An undefined property is unknown. */
export interface Packet {
  iifname?: string;
  oifname?: string;
  saddr?: string;
  daddr?: string;
  etherSource?: string;
  etherDestination?: string;
  /** Kind of the destination address according to the routes of this host. */
  daddrType?: 'local' | 'broadcast';
  protocol?: 'tcp' | 'udp';
  /** Destination port as a decimal number. */
  dport?: string;
}

type Sets = ReadonlyMap<string, readonly unknown[]>;

/** Kinds of expressions in an nftables rule that do not restrict which packets the rule matches. */
const NEUTRAL = new Set(['counter', 'log', 'comment', 'accept', 'drop', 'reject', 'return', 'jump', 'goto']);

const FIELDS: Record<string, keyof Packet> = {
  'meta iifname': 'iifname',
  'meta iif': 'iifname',
  'meta oifname': 'oifname',
  'meta oif': 'oifname',
  'ip saddr': 'saddr',
  'ip daddr': 'daddr',
  'ether saddr': 'etherSource',
  'ether daddr': 'etherDestination',
  'fib daddr type': 'daddrType',
  'meta l4proto': 'protocol',
  'ip protocol': 'protocol',
  'tcp dport': 'dport',
  'udp dport': 'dport',
  'th dport': 'dport',
};

interface Selector {
  meta?: { key?: string };
  payload?: { protocol?: string; field?: string };
  fib?: { result?: string; flags?: string[] };
}

function selectorName(left: unknown): string {
  const { meta, payload, fib } = (left ?? {}) as Selector;
  if (meta) {
    return `meta ${meta.key}`;
  }
  if (fib) {
    return `fib ${fib.flags?.join(' ')} ${fib.result}`;
  }
  return payload ? `${payload.protocol} ${payload.field}` : '';
}

function negate(answer: Answer): Answer {
  if (answer === 'maybe') {
    return 'maybe';
  }
  return answer === 'yes' ? 'no' : 'yes';
}

function isOneOf(value: string, members: readonly unknown[], sets: Sets): Answer {
  const answers = members.map((member) => isEqual(value, member, sets));
  if (answers.includes('yes')) {
    return 'yes';
  }
  return answers.includes('maybe') ? 'maybe' : 'no';
}

function yesNo(holds: boolean): Answer {
  return holds ? 'yes' : 'no';
}

function isText(value: string, right: string, sets: Sets): Answer {
  if (right.startsWith('@')) {
    const members = sets.get(right.slice(1));
    return members ? isOneOf(value, members, sets) : 'maybe';
  }
  if (right.endsWith('*')) {
    return yesNo(value.startsWith(right.slice(0, -1)));
  }
  return yesNo(value === right);
}

interface Literal {
  set?: unknown[];
  prefix?: { addr?: string; len?: number };
  range?: [string, string] | [number, number];
  elem?: { val?: unknown };
}

function isWithin(value: string, first: number, last: number): Answer {
  return isIPv4(value) ? yesNo(toNumber(value) >= first && toNumber(value) <= last) : 'maybe';
}

function isInSpan(value: string, { prefix, range }: Literal): Answer {
  if (prefix?.addr !== undefined && prefix.len !== undefined && isIPv4(prefix.addr)) {
    const first = toNumber(prefix.addr);
    return isWithin(value, first, first + 2 ** (32 - prefix.len) - 1);
  }
  return range === undefined ? 'maybe' : isInRange(value, range);
}

function isInRange(value: string, [first, last]: NonNullable<Literal['range']>): Answer {
  if (typeof first === 'number' || typeof last === 'number') {
    return yesNo(Number(value) >= Number(first) && Number(value) <= Number(last));
  }
  return isIPv4(first) && isIPv4(last) ? isWithin(value, toNumber(first), toNumber(last)) : 'maybe';
}

function isEqual(value: string, right: unknown, sets: Sets): Answer {
  if (typeof right === 'string' || typeof right === 'number') {
    return isText(value, String(right), sets);
  }
  if (typeof right !== 'object' || right === null) {
    return 'maybe';
  }
  const literal = right as Literal;
  if (literal.set) {
    return isOneOf(value, literal.set, sets);
  }
  if (literal.elem) {
    return isEqual(value, literal.elem.val, sets);
  }
  return isInSpan(value, literal);
}

function isAboutIPv4(selector: string, right: unknown): Answer | undefined {
  if (selector === 'meta nfproto') {
    return yesNo(right === 'ipv4');
  }
  if (selector === 'meta protocol' || selector === 'ether type') {
    return yesNo(right === 'ip');
  }
  return undefined;
}

interface Comparison {
  op?: string;
  left?: unknown;
  right?: unknown;
}

/**
 * Returns whether a condition is about a field of another transport protocol, for example about its port. The packet cannot meet such a
 * condition.
 */
function isOfOtherProtocol({ left }: Comparison, { protocol }: Packet): boolean {
  const named = (left as Selector | undefined)?.payload?.protocol;
  return protocol !== undefined && (named === 'tcp' || named === 'udp') && named !== protocol;
}

function compare({ left, right }: Comparison, packet: Packet, sets: Sets): Answer {
  const selector = selectorName(left);
  const field = FIELDS[selector];
  const value = field === undefined ? undefined : packet[field];
  if (value !== undefined) {
    return isEqual(value, right, sets);
  }
  return isAboutIPv4(selector, right) ?? 'maybe';
}

function matchComparison(comparison: Comparison, packet: Packet, sets: Sets): Answer {
  if (isOfOtherProtocol(comparison, packet)) {
    return 'no';
  }
  if (comparison.op === '==') {
    return compare(comparison, packet, sets);
  }
  return comparison.op === '!=' ? negate(compare(comparison, packet, sets)) : 'maybe';
}

/** Returns whether an expression of iptables, which nft cannot read, is a target or a comment. */
function isUnconditional(body: unknown): boolean {
  const { type, name } = (body ?? {}) as { type?: string; name?: string };
  return type === 'target' || name === 'comment';
}

/**
 * Returns whether the packet matches an expression of a rule. The result is also `yes` if the expression is not a condition on the packet,
 * for example if it is a counter. The result is `maybe` if the expression tests a property that this code does not know.
 */
function matchExpression(expression: Record<string, unknown>, packet: Packet, sets: Sets): Answer {
  const [kind, body] = Object.entries(expression)[0] ?? [];
  if (kind === undefined || NEUTRAL.has(kind)) {
    return 'yes';
  }
  if (kind === 'xt') {
    return isUnconditional(body) ? 'yes' : 'maybe';
  }
  return kind === 'match' ? matchComparison(body as Comparison, packet, sets) : 'maybe';
}
