/**
 * Makes the nftables scripts of a NAT network: for guests, and for the network namespaces of programs. Each script loads complete tables in
 * one transaction. A load breaks no connection, because the kernel does not change the address translation of connections that it already
 * tracks.
 */
import type { Attachment, NamespaceAttachment, WantedAttachments } from './attachments.ts';
import { formatSubnet } from './ipv4.ts';
import { type NatLayout, METADATA } from './layout.ts';
import type { RulesetEntry } from '../nftables.ts';
import {
  clearTable,
  connectionLimits,
  connectionsSet,
  dnsLimits,
  elements,
  lines,
  metadataLimits,
  refusalCounter,
  removeTable,
  reservations,
  reservedDestination,
  segmentLimits,
} from './rulewords.ts';

/**
 * UDP ports of the host. The host forwards packets that reach these ports from the outer end of the probe to the inner end. Each test
 * packet goes to a random one of these ports, so that it begins a new connection.
 */
export const PROBE_PORTS = { first: 20_000, last: 29_999 };
/** UDP port on which both ends of the probe listen for test packets. */
export const PROBE_PORT = 20_000;

/**
 * Returns a rule for each reserved port. The rule accepts packets that came to the host port and were translated to the guest port. It does
 * not accept packets that another program's rules translated from other ports.
 */
function admissions(attachments: readonly Attachment[]): string[] {
  return attachments.flatMap((one) =>
    one.ports.map(
      ({ protocol, hostPort, guestPort }) =>
        `ip daddr ${one.address} ${protocol.toLowerCase()} dport ${guestPort} ct original proto-dst ${hostPort} accept`,
    ),
  );
}

/** Returns the guests whose connections and refused packets are counted. The names of a guest's counters contain `device`. */
function countedGuests(attachments: readonly Attachment[]): { address: string; device: string }[] {
  return attachments.map(({ address, tap }) => ({ address, device: tap }));
}

/**
 * Returns the chain that takes the network of the host from hypervisors. A hypervisor sends the packets of its guest through the tap, and
 * needs no other network except to answer VNC clients. A guest that took over its hypervisor could otherwise pass by all other rules.
 */
function hypervisors({ users }: NatLayout): string {
  return users.length === 0
    ? ''
    : `chain hypervisors {
    type filter hook output priority mangle; policy accept;
    ct direction reply ct state established,related accept
    meta skuid { ${users.join(', ')} } drop
  }`;
}

function routed(layout: NatLayout, wanted: WantedAttachments, hasMetadata: boolean): string {
  const attachments = wanted.machines;
  const toPrograms = peerMatches(wanted);
  const { bridge, gateway, probe } = layout;
  const { address: metadata, port, gatewayPort } = METADATA;
  const limits = connectionLimits(layout.connectionsPerGuest, countedGuests(attachments));
  const onlyWithMetadata = (rule: string): string => (hasMetadata ? rule : '');
  const toReservation = `${reservedDestination(layout)} dnat ip to meta l4proto . th dport map @reservations`;
  return `table inet ${layout.table} {
  ${lines(attachments.map((one) => `counter ${refusalCounter(one.tap)} { }`))}
  ${connectionsSet()}
  set guests_may_not_reach {
    typeof ip daddr
    flags interval
    auto-merge
    ${elements(layout.forbidden)}
  }
  map reservations {
    type inet_proto . inet_service : ipv4_addr . inet_service
    ${elements(reservations(attachments))}
  }
  chain guests {
    type filter hook prerouting priority mangle; policy accept;
    iifname "${bridge}" jump guests_reach
  }
  chain guests_reach {
    ct direction reply ct state established,related accept
    ip daddr ${gateway} meta l4proto { tcp, udp } th dport { 53, 67 } accept
    ip daddr ${gateway} meta l4proto icmp accept
    ${onlyWithMetadata(`ip daddr ${metadata} tcp dport ${port} accept`)}
    fib daddr type local drop
    ip saddr ${probe.innerAddress} ip daddr ${formatSubnet(probe.outerSubnet)} accept
    ${lines(toPrograms.map((one) => `${one} accept`))}
    ip daddr ${metadata} drop
    ip daddr @guests_may_not_reach drop
  }
  chain guests_metadata {
    ${lines(metadataLimits(attachments))}
    goto guests_limits
  }
  chain guests_dns {
    ${lines(dnsLimits(attachments))}
    goto guests_limits
  }
  chain guests_limits {
    ct state != new accept
    ${lines(limits)}
  }
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    ${onlyWithMetadata(`iifname "${bridge}" ip daddr ${metadata} tcp dport ${port} dnat ip to ${gateway}:${gatewayPort}`)}
    iifname "${probe.outerPort}" udp dport ${PROBE_PORTS.first}-${PROBE_PORTS.last} dnat ip to ${probe.innerAddress}:${PROBE_PORT}
    iifname != { "${bridge}", "${probe.outerPort}" } ${toReservation}
  }
  chain output {
    type nat hook output priority -100; policy accept;
    ${toReservation}
  }
  ${hypervisors(layout)}
  chain input {
    type filter hook input priority filter; policy accept;
    iifname "${probe.outerPort}" drop
    iifname != "${bridge}" ip daddr ${gateway} tcp dport ${gatewayPort} drop
    iifname != "${bridge}" accept
    ${onlyWithMetadata(`ip daddr ${gateway} tcp dport ${gatewayPort} ct original ip daddr ${metadata} goto guests_metadata`)}
    ip daddr { 255.255.255.255, ${gateway} } udp sport 68 udp dport 67 accept
    ip daddr ${gateway} meta l4proto { tcp, udp } th dport 53 goto guests_dns
    ip daddr ${gateway} icmp type echo-request goto guests_limits
    ct state established,related accept
    drop
  }
  chain forward {
    type filter hook forward priority filter; policy accept;
    ${lines(segmentLimits(bridge))}
    iifname "${bridge}" jump from_guests
    oifname "${bridge}" jump to_guests
  }
  chain from_guests {
    oifname "${bridge}" drop
    ip saddr != ${formatSubnet(layout.subnet)} drop
    meta nfproto ipv6 drop
    ct direction reply ct state established,related accept
    ip saddr ${probe.innerAddress} ip daddr ${formatSubnet(probe.outerSubnet)} accept
    ${lines(toPrograms.map((one) => `${one} goto guests_limits`))}
    ip daddr ${metadata} drop
    ip daddr @guests_may_not_reach drop
    goto guests_limits
  }
  chain to_guests {
    ct state established,related accept
    ct status dnat jump reserved
    drop
  }
  chain reserved {
    iifname "${probe.outerPort}" ip daddr ${probe.innerAddress} udp dport ${PROBE_PORT} accept
    ${lines(admissions(attachments))}
  }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr ${formatSubnet(layout.subnet)} oifname != "${bridge}" oifname != "${layout.namespaces.prefix}*" masquerade
  }
}`;
}

interface Port {
  name: string;
  macAddress: string;
  address: string;
}

function portsOf(layout: NatLayout, attachments: readonly Attachment[]): Port[] {
  const { probe } = layout;
  return [
    { name: probe.innerPort, macAddress: probe.innerMac, address: probe.innerAddress },
    ...attachments.map((one) => ({ name: one.tap, macAddress: one.macAddress, address: one.address })),
  ];
}

/**
 * Limits of each guest's DHCP messages. A guest sends about four messages when it boots. All guests of the host share one queue for the
 * messages that dnsmasq has not read yet. Without a limit, one guest could fill this queue, and the other guests would get no addresses.
 */
const DHCP_MESSAGES_PER_SECOND = 10;
const DHCP_BURST = 50;

/**
 * Returns the rules that accept DHCP messages. A message contains the sender's MAC address at byte 36 of the UDP datagram (RFC 2131). At
 * this byte, the rule of a machine requires the machine's own MAC address. The agent itself sends the messages of the probe.
 */
function dhcpMessages({ gateway, probe }: NatLayout, attachments: readonly Attachment[]): string[] {
  const rate = `limit rate ${DHCP_MESSAGES_PER_SECOND}/second burst ${DHCP_BURST} packets`;
  const ofMachines = attachments.map(({ tap, macAddress, address }) => {
    const card = `@th,288,48 0x${macAddress.replaceAll(':', '')}`;
    return `iifname "${tap}" ip saddr { 0.0.0.0, ${address} } ip daddr { 255.255.255.255, ${gateway} } ${card} ${rate} accept`;
  });
  return [`iifname "${probe.innerPort}" ip saddr ${probe.innerAddress} accept`, ...ofMachines];
}

/**
 * Returns the table that filters packets of guests at the bridge. A guest can send only ARP packets, DHCP requests, and IPv4 packets to the
 * MAC address of the bridge. The sender's addresses must be the guest's own MAC and IP address. All other packets to several bridge ports
 * (broadcast, multicast) are dropped here. If only a later rule dropped such packets, the kernel would track them as connections that do
 * not count towards the guest's limit.
 */
function bridged(layout: NatLayout, attachments: readonly Attachment[]): string {
  const ports = portsOf(layout, attachments);
  const cards = ports.map((port) => `"${port.name}" . ${port.macAddress}`);
  const machines = ports.map((port) => `"${port.name}" . ${port.macAddress} . ${port.address}`);
  const ours = [`"${layout.tapPrefix}*"`, `"${layout.probe.innerPort}"`];
  return `table bridge ${layout.table} {
  set cards {
    type ifname . ether_addr
    ${elements(cards)}
  }
  set machines {
    type ifname . ether_addr . ipv4_addr
    ${elements(machines)}
  }
  chain prerouting {
    type filter hook prerouting priority -300; policy accept;
    ${ours.map((port) => `iifname ${port} jump from_guest`).join('\n    ')}
  }
  chain from_guest {
    iifname . ether saddr != @cards drop
    ether type ip udp dport 67 goto dhcp
    ether type ip ether daddr ${layout.bridgeMac} iifname . ether saddr . ip saddr @machines accept
    ether type arp iifname . arp saddr ether . arp saddr ip @machines accept
    ether type arp iifname . arp saddr ether @cards arp saddr ip 0.0.0.0 accept
    drop
  }
  chain dhcp {
    udp sport != 68 drop
    ${dhcpMessages(layout, attachments).join('\n    ')}
    drop
  }
  chain input {
    type filter hook input priority filter; policy accept;
    ${ours.map((port) => `iifname ${port} ether daddr & ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00 drop`).join('\n    ')}
  }
  chain forward {
    type filter hook forward priority filter; policy accept;
    ${ours.flatMap((port) => [`iifname ${port} drop`, `oifname ${port} drop`]).join('\n    ')}
  }
}`;
}

/**
 * Returns the script that replaces Berth's tables. Tables of other programs stay unchanged. If `hasMetadata` is false, the metadata server
 * does not listen. In this case, the rules let no guest reach the server's port, because another program might be listening there.
 */
export function rulesetScript(layout: NatLayout, wanted: WantedAttachments, hasMetadata: boolean): string {
  return [removalScript(layout), ...wantedTables(layout, wanted, hasMetadata), ''].join('\n');
}

/**
 * Returns the script that changes Berth's tables, and keeps their counts of connections and refused packets. `loaded` contains the rules of
 * the kernel, which an earlier script of this agent has loaded.
 */
export function changeScript(
  layout: NatLayout,
  wanted: WantedAttachments,
  hasMetadata: boolean,
  loaded: readonly RulesetEntry[],
): string {
  const { table, namespaces } = layout;
  const clearing = [
    ...clearTable(`inet ${table}`, loaded, countedGuests(wanted.machines)),
    ...removeTable(`bridge ${table}`),
    ...(wanted.namespaces.length === 0
      ? removeTable(`inet ${namespaces.table}`)
      : clearTable(`inet ${namespaces.table}`, loaded, wanted.namespaces)),
  ];
  return [...clearing, ...wantedTables(layout, wanted, hasMetadata), ''].join('\n');
}

function wantedTables(layout: NatLayout, wanted: WantedAttachments, hasMetadata: boolean): string[] {
  return [
    routed(layout, wanted, hasMetadata),
    bridged(layout, wanted.machines),
    namespaceTable(layout, wanted),
  ];
}

/** Returns the names of Berth's tables in nft, for example `inet berth`. */
export function tablesOf({ table, namespaces }: NatLayout): string[] {
  return [`inet ${table}`, `bridge ${table}`, `inet ${namespaces.table}`];
}

/** Returns the script that removes all of Berth's tables. The script also works if a table does not exist. */
export function removalScript(layout: NatLayout): string {
  return tablesOf(layout).flatMap(removeTable).join('\n');
}

/** Returns the part of an nftables rule that matches packets to the exposed port of a network namespace. */
function exposed({ address, exposedPort }: NamespaceAttachment): string {
  return `ip daddr ${address} tcp dport ${exposedPort}`;
}

/**
 * Returns conditions for nftables rules, one for each network namespace to which an attached machine may connect. A condition matches the
 * packets from this machine to the exposed port of the namespace.
 */
export function peerMatches({ machines, namespaces }: WantedAttachments): string[] {
  return namespaces.flatMap((one) => {
    const peer = machines.find(({ uid }) => uid === one.peer);
    return peer === undefined ? [] : [`ip saddr ${peer.address} ${exposed(one)}`];
  });
}

/** Returns the address and the reserved ports of a network namespace. All these ports lead to the namespace's exposed port. */
function leadingToProgram({ address, exposedPort, ports }: NamespaceAttachment) {
  return { address, ports: ports.map((port) => ({ ...port, guestPort: exposedPort })) };
}

/**
 * Returns one rule for each reserved host port. The rule accepts packets to the exposed port only if their original target was this host
 * port.
 */
function namespaceAdmissions(namespaces: readonly NamespaceAttachment[]): string[] {
  return namespaces.flatMap((one) =>
    one.ports.map(({ hostPort }) => `${exposed(one)} ct original proto-dst ${hostPort} accept`),
  );
}

/**
 * Returns the host's nftables table for network namespaces. The result is empty if there are no network namespaces. This table is separate
 * from the other tables, so that it survives a downgrade of the agent. An earlier release replaces the other tables with tables that have
 * no rules for namespaces. It does not change this table, so programs that continue to run stay confined. The rules check a packet's target
 * before and after address translation. The second check is necessary, because rules of other programs can translate a permitted address
 * (for example of a Service) into a forbidden address.
 */
function namespaceTable(layout: NatLayout, wanted: WantedAttachments): string {
  const { bridge, gateway, subnet, probe } = layout;
  const { namespaces } = wanted;
  const any = `"${layout.namespaces.prefix}*"`;
  const toReservation = `${reservedDestination(layout)} dnat ip to meta l4proto . th dport map @reservations`;
  if (namespaces.length === 0) {
    return '';
  }
  return `table inet ${layout.namespaces.table} {
  ${lines(namespaces.map(({ device }) => `counter ${refusalCounter(device)} { }`))}
  ${connectionsSet()}
  set may_not_reach {
    typeof ip daddr
    flags interval
    auto-merge
    ${elements(layout.forbidden)}
  }
  set addresses {
    typeof ip saddr
    ${elements(namespaces.map(({ address }) => address))}
  }
  set senders {
    type ifname . ipv4_addr
    ${elements(namespaces.map(({ device, address }) => `"${device}" . ${address}`))}
  }
  map reservations {
    type inet_proto . inet_service : ipv4_addr . inet_service
    ${elements(reservations(namespaces.map(leadingToProgram)))}
  }
  chain senders_only {
    type filter hook prerouting priority raw; policy accept;
    iifname ${any} meta nfproto ipv6 drop
    iifname ${any} iifname . ip saddr != @senders drop
  }
  chain sent {
    type filter hook prerouting priority mangle; policy accept;
    iifname ${any} jump reach
  }
  chain reach {
    ct direction reply ct state established,related accept
    ip daddr ${gateway} meta l4proto { tcp, udp } th dport 53 accept
    fib daddr type != unicast drop
    jump refuse
  }
  chain refuse {
    ip daddr { ${METADATA.address}, ${formatSubnet(subnet)}, ${formatSubnet(probe.outerSubnet)} } drop
    ip daddr @may_not_reach drop
  }
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    iifname != ${any} iifname != { "${bridge}", "${probe.outerPort}" } ${toReservation}
  }
  chain translate_output {
    type nat hook output priority -100; policy accept;
    ${toReservation}
  }
  chain input {
    type filter hook input priority filter; policy accept;
    iifname != ${any} accept
    ct direction reply ct state established,related accept
    ip daddr ${gateway} meta l4proto { tcp, udp } th dport 53 goto programs_dns
    drop
  }
  chain forward {
    type filter hook forward priority filter; policy accept;
    ${lines(segmentLimits(`${layout.namespaces.prefix}*`))}
    iifname ${any} jump from_namespaces
    oifname ${any} jump to_namespaces
  }
  chain from_namespaces {
    ct direction reply ct state established,related accept
    jump refuse
    goto limits
  }
  chain programs_dns {
    ${lines(dnsLimits(namespaces))}
    goto limits
  }
  chain limits {
    ct state != new accept
    ${lines(connectionLimits(layout.connectionsPerGuest, namespaces))}
  }
  chain output {
    type filter hook output priority filter; policy accept;
    oifname != ${any} accept
    ct state established,related accept
    ${lines(namespaces.map((one) => `meta skuid 0 ${exposed(one)} accept`))}
    ct status dnat jump reserved
    drop
  }
  chain to_namespaces {
    ct state established,related accept
    ${lines(peerMatches(wanted).map((peer) => `iifname "${bridge}" ${peer} accept`))}
    ct status dnat jump reserved
    drop
  }
  chain reserved {
    ${lines(namespaceAdmissions(namespaces))}
  }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr @addresses masquerade
  }
}`;
}
