/** Makes parts of nftables rules. The rules for guests and the rules for the network namespaces of programs both contain these parts. */
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { CONNECTIONS_SET, countedAddresses, namesIn, type RulesetEntry } from '../nftables.ts';
import type { NatLayout } from './layout.ts';

/**
 * Returns the name of the nftables counter for the refused packets of a machine or program. `device` is the machine's tap, or the device of
 * the program's network namespace.
 */
export function refusalCounter(device: string): string {
  return `refused_${device}`;
}

/** Returns the elements of a set or map in nft's syntax. If there are no elements, the result is empty. */
export function elements(values: readonly string[]): string {
  return values.length === 0 ? '' : `elements = { ${values.join(', ')} }`;
}

export function lines(rules: readonly string[]): string {
  return rules.join('\n    ');
}

/** Returns the elements of an nftables map. Each element maps a reserved host port to the address and port of a guest or program. */
export function reservations(
  members: readonly { address: string; ports: readonly MachinePort[] }[],
): string[] {
  return members.flatMap((one) =>
    one.ports.map(
      (port) => `${port.protocol.toLowerCase()} . ${port.hostPort} : ${one.address} . ${port.guestPort}`,
    ),
  );
}

/**
 * Returns the part of an nftables rule that checks a packet's destination address. It matches the host's addresses on which machines can
 * reserve ports. It does not match loopback addresses, because replies could not return to 127.0.0.1.
 */
export function reservedDestination({ hostAddress }: NatLayout): string {
  return hostAddress === undefined
    ? 'fib daddr type local ip daddr != 127.0.0.0/8'
    : `ip daddr ${hostAddress}`;
}

/**
 * Largest number of new connections of a guest per second. Before the limit applies, a guest can open as many connections at once as
 * `connectionsPerGuest` allows. For each new connection, the kernel reads its list of the guest's connections, and removes only some of the
 * connections that have ended. Without this limit, a flood of new connections would make that list grow endlessly.
 */
const NEW_CONNECTIONS_PER_SECOND = 200;

/** Largest number of addresses whose connections are counted. It is nft's default, and more than a host has guests. */
const COUNTED_ADDRESSES = 65_535;

/** Returns the definition of the set in which the kernel counts connections. */
export function connectionsSet(): string {
  return `set ${CONNECTIONS_SET} {
    typeof ip saddr
    size ${COUNTED_ADDRESSES}
    flags dynamic
  }`;
}

/** Returns the rules that limit the tracked connections of guests or programs. `device` determines the counter for refused packets. */
export function connectionLimits(
  connectionsPerGuest: number,
  members: readonly { address: string; device: string }[],
): string[] {
  return members.flatMap(({ address, device }) =>
    [
      `limit rate over ${NEW_CONNECTIONS_PER_SECOND}/second burst ${connectionsPerGuest} packets`,
      `add @${CONNECTIONS_SET} { ip saddr ct count over ${connectionsPerGuest} }`,
    ].map((limit) => `ip saddr ${address} ${limit} counter name "${refusalCounter(device)}" drop`),
  );
}

/**
 * Limits of each guest's DNS queries. dnsmasq waits up to 10 s for an answer. While it waits for too many answers, it refuses the queries of
 * all guests. With these limits, at most 2,500 queries of one guest wait at the same time. The limit of connections does not suffice,
 * because one connection can carry any number of queries. For TCP, dnsmasq starts up to 20 processes, one for each connection.
 */
const DNS_QUERIES_PER_SECOND = 200;
const DNS_BURST = 500;
const DNS_TCP_CONNECTIONS = 4;

/** Returns the nftables rules that limit the DNS queries of guests or programs with these addresses. */
export function dnsLimits(members: readonly { address: string }[]): string[] {
  const rate = `limit rate over ${DNS_QUERIES_PER_SECOND}/second burst ${DNS_BURST} packets`;
  return members.flatMap(({ address }) => [
    `ip saddr ${address} udp dport 53 ${rate} drop`,
    `ip saddr ${address} tcp dport 53 ct state new ct count over ${DNS_TCP_CONNECTIONS} drop`,
  ]);
}

/**
 * Largest number of connections per second that a guest can open to the metadata server, after an initial burst. The burst lets a guest
 * read all values one by one at its start. The limit is necessary, because each connection takes processor time of the agent. A busy agent
 * would renew the Lease of its Node too late.
 */
const METADATA_CONNECTIONS_PER_SECOND = 5;
const METADATA_BURST = 128;

/** Returns the rules that limit how often each guest asks for its metadata. */
export function metadataLimits(guests: readonly { address: string }[]): string[] {
  const rate = `limit rate over ${METADATA_CONNECTIONS_PER_SECOND}/second burst ${METADATA_BURST} packets`;
  return guests.map(({ address }) => `ip saddr ${address} ct state new ${rate} drop`);
}

/**
 * Returns the rules that limit the segments of each TCP connection to the smallest MTU of the host's devices on its way. A VPN or the
 * network of a cloud can have a small MTU. Without these rules, guests announce segments for their own larger devices. Many routers drop
 * packets that are too large without a message. `device` is the name of the device of guests or programs, perhaps with a `*` at its end.
 */
export function segmentLimits(device: string): string[] {
  return ['iifname', 'oifname'].map(
    (side) => `${side} "${device}" tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu`,
  );
}

/** Returns the commands that remove a table. They also succeed if the table does not exist. */
export function removeTable(table: string): string[] {
  return [`add table ${table}`, `delete table ${table}`];
}

/**
 * Returns the commands that remove the content of a table, except the chains, and except the counted connections and the counters of these
 * members. `loaded` contains the rules of the kernel. If it does not contain the table, the result is empty.
 */
export function clearTable(
  table: string,
  loaded: readonly RulesetEntry[],
  members: readonly { address: string; device: string }[],
): string[] {
  const kept = new Set([CONNECTIONS_SET, ...members.map(({ device }) => refusalCounter(device))]);
  const removed = (kind: string): string[] => namesIn(loaded, table, kind).filter((name) => !kept.has(name));
  const addresses = new Set(members.map(({ address }) => address));
  const gone = countedAddresses(loaded, table).filter((address) => !addresses.has(address));
  return [
    ...namesIn(loaded, table, 'table').map(() => `flush table ${table}`),
    ...removed('set').map((name) => `flush set ${table} ${name}`),
    ...removed('map').map((name) => `flush map ${table} ${name}`),
    ...removed('counter').map((name) => `delete counter ${table} ${name}`),
    // The kernel may have removed an element meanwhile, and the deletion of a missing element would fail.
    ...gone.flatMap((address) =>
      ['add', 'delete'].map((verb) => `${verb} element ${table} ${CONNECTIONS_SET} { ${address} }`),
    ),
  ];
}
