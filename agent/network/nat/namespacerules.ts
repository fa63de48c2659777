/**
 * Makes the nftables scripts for the network namespaces of programs. An nftables table on the host determines which senders can reach a
 * namespace, and which addresses the program in the namespace can reach. Rules in the namespace forward connections to the namespace's
 * exposed port to the program on loopback.
 */
import type { NamespaceAttachment, Wanted } from './attachments.ts';
import { formatSubnet } from './ipv4.ts';
import { type Layout, METADATA } from './layout.ts';
import {
  connectionLimits,
  connectionsSet,
  dnsLimits,
  elements,
  lines,
  refusalCounter,
  reservations,
  reservedDestination,
  segmentLimits,
} from './rulewords.ts';

/** Returns the part of an nftables rule that matches packets to the exposed port of a network namespace. */
function exposed({ address, exposedPort }: NamespaceAttachment): string {
  return `ip daddr ${address} tcp dport ${exposedPort}`;
}

/**
 * Returns conditions for nftables rules, one for each network namespace to which an attached machine may connect. A condition matches the
 * packets from this machine to the exposed port of the namespace.
 */
export function peerMatches({ machines, namespaces }: Wanted): string[] {
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
function admissions(namespaces: readonly NamespaceAttachment[]): string[] {
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
export function namespaceTable(layout: Layout, wanted: Wanted): string {
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
    type ipv4_addr
    flags interval
    auto-merge
    ${elements(layout.forbidden)}
  }
  set addresses {
    type ipv4_addr
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
    ${lines(admissions(namespaces))}
  }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr @addresses masquerade
  }
}`;
}

/**
 * Returns the script with the rules in a network namespace. In the namespace, the kernel tracks only connections to the exposed port. The
 * tracking of other connections would need kernel memory without a limit, because the limits on the host do not apply in the namespace.
 * Only Berth uses the namespace, so the script replaces all rules in the namespace.
 */
export function insideScript(layout: Layout, { device, address, exposedPort }: NamespaceAttachment): string {
  return `flush ruleset
table inet ${layout.table} {
  chain received {
    type filter hook prerouting priority raw; policy accept;
    iifname "lo" notrack accept
    meta nfproto ipv6 drop
    ip daddr != ${address} drop
    tcp dport ${exposedPort} accept
    notrack
  }
  chain sent {
    type filter hook output priority raw; policy accept;
    oifname != "lo" ip saddr 127.0.0.1 tcp sport ${exposedPort} accept
    notrack
  }
  chain expose {
    type nat hook prerouting priority dstnat; policy accept;
    iifname "${device}" ip daddr ${address} tcp dport ${exposedPort} dnat ip to 127.0.0.1:${exposedPort}
  }
  chain input {
    type filter hook input priority filter; policy drop;
    iifname "lo" accept
    ct status dnat accept
    tcp flags & (fin | syn | rst | ack) == syn drop
    ct state untracked accept
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
  }
}
`;
}
