/**
 * Evaluates whether an expression of an nftables rule (in the JSON form of nft) matches a packet. Some properties of the packet can be
 * unknown.
 */
import { isIPv4 } from 'node:net';
import { toNumber } from './ipv4.ts';

export type Answer = 'yes' | 'no' | 'maybe';

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
export function matchExpression(expression: Record<string, unknown>, packet: Packet, sets: Sets): Answer {
  const [kind, body] = Object.entries(expression)[0] ?? [];
  if (kind === undefined || NEUTRAL.has(kind)) {
    return 'yes';
  }
  if (kind === 'xt') {
    return isUnconditional(body) ? 'yes' : 'maybe';
  }
  return kind === 'match' ? matchComparison(body as Comparison, packet, sets) : 'maybe';
}
