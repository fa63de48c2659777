/**
 * Finds nftables rules of other programs that lead a port of this host elsewhere, for example to a container. Such a program needs no
 * socket, so the port looks free. If a machine reserves the port too, the order in which the rules were loaded decides which of them apply.
 *
 * A rule counts only if it applies to packets from every device and every sender outside. nft cannot read some conditions of iptables.
 * After such a condition, a packet counts as led elsewhere only if a rule on its way names the port.
 */
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { portName } from '../../../api/v1alpha1/ports.ts';
import type { RulesetEntry } from '../nftables.ts';
import {
  type Chain,
  type Expression,
  foreignTables,
  MAXIMUM_DEPTH,
  type Table,
  verdictOf,
} from './foreignrules.ts';
import type { Layout } from './layout.ts';
import type { Links } from './devices.ts';
import { ownDevices } from './plan.ts';
import { matchExpression, type Packet } from './rulematch.ts';

/** Sender of the example packet: an address that no network uses (RFC 5737). */
const OUTSIDE = '203.0.113.1';

/** Conditions of iptables that nft cannot read. Rules that publish a port have some of them. */
const HIDDEN_CONDITIONS = new Set(['addrtype', 'multiport', 'statistic']);

/** Targets of iptables that lead packets elsewhere. */
const TRANSLATIONS = new Set(['DNAT', 'REDIRECT']);

/** Facts about the rules that a packet has passed so far. */
interface Way {
  /** Whether a rule has named the port of the packet. */
  isNamed: boolean;
  /** Whether a rule has a condition that nft cannot read. */
  isHidden: boolean;
  /** Number of jumps to other chains. */
  depth: number;
}

/** Result of rules for a packet: the chain that leads the packet elsewhere, or another verdict. */
type End = { chain: string } | 'accept' | 'return';

/** Lookup of a packet's properties in a map of nftables. */
interface Lookup {
  key?: unknown;
  data?: string | { set?: unknown[] };
}

interface Selector {
  payload?: { field?: string };
}

/** Selectors of nftables that spread packets over several targets. Each target counts. */
const SPREADING = ['numgen', 'jhash', 'symhash'];

/** Statements of a rule that this file reads, in the form in which nft prints them. */
interface Statements {
  match?: { left?: unknown };
  xt?: { type: string; name: string };
  vmap?: Lookup;
  dnat?: { family?: string; addr?: { map?: Lookup } };
}

/** Ports of this host that other programs lead elsewhere. */
export class PublishedPorts {
  readonly #layout: Layout;
  readonly #ours: readonly string[];
  #tables: readonly Table[] = [];
  #addresses: readonly string[] = [];
  /** Results for the present rules. The key is the {@link portName} of the port. */
  readonly #judged = new Map<string, string | undefined>();

  /** @param ours names of Berth's tables in nft. */
  constructor(layout: Layout, ours: readonly string[]) {
    this.#layout = layout;
    this.#ours = ours;
  }

  /** Stores the present rules and devices of this host. Earlier results no longer count. */
  notice({ ruleset, links }: { ruleset: readonly RulesetEntry[]; links: Links }): void {
    this.#tables = foreignTables(ruleset, this.#ours);
    this.#addresses = reservable(this.#layout, links);
    this.#judged.clear();
  }

  /** Returns a message for each of the ports that is led elsewhere. The key is the {@link portName} of the port. */
  faults(ports: readonly MachinePort[]): Map<string, string> {
    const faults = ports.map((port) => [portName(port), this.faultOf(port)] as const);
    return new Map(faults.flatMap(([name, fault]) => (fault === undefined ? [] : [[name, fault]])));
  }

  /** Returns a message if other programs lead the port elsewhere; otherwise undefined. */
  faultOf(port: MachinePort): string | undefined {
    const name = portName(port);
    if (!this.#judged.has(name)) {
      this.#judged.set(name, this.#judge(port));
    }
    return this.#judged.get(name);
  }

  #judge({ protocol, hostPort }: MachinePort): string | undefined {
    const culprits = new Set(
      this.#addresses.flatMap((daddr) =>
        culpritsOf(this.#tables, {
          iifname: '',
          saddr: OUTSIDE,
          daddr,
          daddrType: 'local',
          protocol: protocol === 'TCP' ? 'tcp' : 'udp',
          dport: String(hostPort),
        }),
      ),
    );
    return culprits.size === 0
      ? undefined
      : `Other programs lead port ${hostPort}/${protocol} of this host elsewhere in ${[...culprits].join(' and in ')}`;
  }
}

/**
 * Returns the addresses of this host at which machines can reserve ports. Addresses of dummy devices are left out: kube-proxy and others
 * keep thousands of addresses of Services there.
 */
function reservable(layout: Layout, links: Links): string[] {
  if (layout.hostAddress !== undefined) {
    return [layout.hostAddress];
  }
  const own = new Set(ownDevices(layout, links));
  const others = [...links].filter(([name, { kind }]) => !own.has(name) && kind !== 'dummy');
  const addresses = others.flatMap(([, link]) => link.addresses);
  return addresses.map((one) => one.replace(/\/.*/, '')).filter((one) => !one.startsWith('127.'));
}

function culpritsOf(tables: readonly Table[], packet: Packet): string[] {
  return tables
    .filter(({ family }) => ['inet', 'ip'].includes(family))
    .flatMap((table) => {
      const walk = new Walk(table, packet);
      const ends = [...table.chains.values()]
        .filter(({ hook }) => hook === 'prerouting')
        .map((chain) => walk.through(chain, { isNamed: false, isHidden: false, depth: 0 }));
      return ends.flatMap((end) =>
        typeof end === 'object' ? [`table ${table.name}, chain ${end.chain}`] : [],
      );
    });
}

/** Way of a packet through the chains of one table. */
class Walk {
  readonly #table: Table;
  readonly #packet: Packet;

  constructor(table: Table, packet: Packet) {
    this.#table = table;
    this.#packet = packet;
  }

  /** Returns the result of a chain. Undefined means that the chain has no result, so the rules that follow it apply. */
  through(chain: Chain, way: Way): End | undefined {
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
    const { match, xt, dnat } = expression as Statements;
    // A rule with the family `ip6` is only for IPv6, but nft prints no condition that says so.
    if (dnat?.family === 'ip6') {
      return undefined;
    }
    if (match !== undefined) {
      const answer = matchExpression(expression, this.#packet, this.#table.sets);
      return answer === 'yes' ? named(way, match.left) : undefined;
    }
    if (xt?.type !== 'match' || xt.name === 'comment') {
      return way;
    }
    return HIDDEN_CONDITIONS.has(xt.name) ? { ...way, isHidden: true } : undefined;
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
    if (isTranslation(expression)) {
      return ledBy(chain, way);
    }
    return verdictOf([expression]) === undefined ? 'next' : this.#decide(expression, way);
  }

  /** Returns the result of an expression with a verdict; undefined if the next rule decides. */
  #decide(expression: Expression, way: Way): End | undefined {
    const { verdict, target } = verdictOf([expression]) ?? { verdict: 'return', target: undefined };
    if (verdict === 'jump' || verdict === 'goto') {
      const end = this.#jump(target ?? '', way);
      return end === undefined && verdict === 'goto' ? 'return' : end;
    }
    if (way.isHidden) {
      return undefined;
    }
    return verdict === 'return' ? 'return' : 'accept';
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
