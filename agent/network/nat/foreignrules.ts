/**
 * Finds nftables rules of other programs that drop a machine's packets, or that lead a reserved port of this host elsewhere. Berth never
 * changes these rules, and cannot overrule them, because an accept in one table does not cancel a drop in another.
 *
 * A rule that drops is reported only if it drops all packets of a machine in one direction. A rule that also tests, for example, a port or
 * the state of a connection counts as an intended filter and is not reported.
 *
 * A port can be led elsewhere, for example to a container, without a socket, so the port looks free. If a machine reserves the port too, the
 * order in which the rules were loaded decides which of them apply. A rule counts only if it applies to packets from every device and every
 * sender outside.
 */
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { portName } from '../../../api/v1alpha1/ports.ts';
import { type RulesetEntry, tableOf } from '../nftables.ts';
import type { Links } from './devices.ts';
import type { NatLayout } from './layout.ts';
import { ownDevices } from './plan.ts';
import { type Chain, evaluate, type Expression, type Packet, type Table } from './ruleevaluator.ts';

/** Properties of a machine that nftables rules can match. The probe, which sends test packets, has the same properties. */
export interface RuleSubject {
  address: string;
  macAddress: string;
  port: string;
  bridge: string;
}

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
function packetsAt(family: string, hook: string, subject: RuleSubject): Packet[] {
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

function stops(table: Table, chain: Chain, subject: RuleSubject): boolean {
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
  return (evaluate(table, chain, packet, 'drop') ?? chain.policy) === 'drop';
}

/** Returns the names of base chains that drop the machine's or probe's packets, for example `table inet other, chain forward`. */
export function chainsStopping(tables: readonly Table[], subject: RuleSubject): string[] {
  return chainsOf(tables, (table, chain) => stops(table, chain, subject));
}

/**
 * Returns the names of base chains that perhaps drop the packets of a machine or probe to a UDP port of the host itself. The result also
 * names chains that accept some of these packets, for example packets of known connections. So use the result only to explain a loss that a
 * test has shown.
 */
export function chainsStoppingInput(
  tables: readonly Table[],
  { address, bridge }: RuleSubject,
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

/** Sender of the example packet: an address that no network uses (RFC 5737). */
const OUTSIDE = '203.0.113.1';

/** Ports of this host that other programs lead elsewhere. */
export class PublishedPorts {
  readonly #layout: NatLayout;
  readonly #ours: readonly string[];
  #tables: readonly Table[] = [];
  #addresses: readonly string[] = [];
  /** Results for the present rules. The key is the {@link portName} of the port. */
  readonly #judged = new Map<string, string | undefined>();

  /** @param ours names of Berth's tables in nft. */
  constructor(layout: NatLayout, ours: readonly string[]) {
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
function reservable(layout: NatLayout, links: Links): string[] {
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
      const chains = [...table.chains.values()].filter(({ hook }) => hook === 'prerouting');
      const ends = chains.map((chain) => evaluate(table, chain, packet, 'translation'));
      return ends.flatMap((end) =>
        typeof end === 'object' ? [`table ${table.name}, chain ${end.chain}`] : [],
      );
    });
}
