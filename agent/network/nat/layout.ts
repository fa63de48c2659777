/** Everything a NAT network's names and addresses follow from: a pure function of its options. */
import { createHash } from 'node:crypto';
import type { PortRules } from '../../../api/v1alpha1/reservable.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { addressAt, parseSubnet, type Subnet, sizeOf } from './ipv4.ts';

export interface NatOptions {
  /** Folder for the attachments, which outlive a reboot; made when missing. */
  directory: string;
  /** Folder for dnsmasq's files, made and removed. dnsmasq reads it as an unprivileged user, so that its parents must be open to all. */
  runtimeDirectory: string;
  /** Name of the bridge; every other device's name follows from it. At most 15 characters. */
  bridge: string;
  /** Name of the nftables tables (`inet` and `bridge`). */
  table: string;
  /** The guests' network, e.g. 10.213.0.0/20. */
  subnet: string;
  /** A /24 used between the host and the outer end of the probe only. */
  probeSubnet: string;
  /** IPv4 address of the host on which reservations are reached; undefined: every one but loopback. */
  hostAddress?: string;
  /** IPv4 networks that guests may not reach, besides each other and the host. */
  forbidden: readonly string[];
  /** How many connections one guest may have open at once, counted as the kernel tracks them. */
  connectionsPerGuest: number;
  /** Which ports machines may reserve. */
  ports: PortRules;
  /** Upstream DNS servers; empty: those of the host's resolv.conf. */
  dnsServers: string[];
}

export interface Layout {
  bridge: string;
  bridgeMac: string;
  table: string;
  subnet: Subnet;
  gateway: string;
  hostAddress: string | undefined;
  forbidden: readonly string[];
  connectionsPerGuest: number;
  tapPrefix: string;
  probe: ProbeLayout;
}

/** The probe's two ends: an inner one connected like a guest, an outer one like the world beyond the host. */
export interface ProbeLayout {
  innerPort: string;
  innerMac: string;
  innerAddress: string;
  outerPort: string;
  outerSubnet: Subnet;
  /** The host's address on the outer link: what the outer end must see as the sender. */
  outerGateway: string;
  outerAddress: string;
}

/** Where a guest's address may start: below are the gateway and the probe. */
const FIRST_GUEST = 16;
const INTERFACE_NAME = /^[a-zA-Z][a-zA-Z0-9-]{0,14}$/;

function hash(text: string, length: number): string {
  return createHash('sha256').update(text).digest('hex').slice(0, length);
}

/** A locally administered unicast address that stays the same for the same text. */
function stableMac(text: string): string {
  const bytes = hash(text, 10).match(/../g) ?? [];
  return ['02', ...bytes].join(':');
}

/** @throws ReasonedError `NetworkUnavailable` for a name or subnet that cannot be used. */
export function layoutOf(options: NatOptions): Layout {
  for (const name of [options.bridge, options.table]) {
    if (!INTERFACE_NAME.test(name)) {
      throw new ReasonedError('NetworkUnavailable', `not a name for a bridge or table: ${name}`);
    }
  }
  const subnet = parseSubnet(options.subnet);
  const outerSubnet = parseSubnet(options.probeSubnet);
  if (outerSubnet.prefix !== 24) {
    throw new ReasonedError('NetworkUnavailable', 'the probe subnet must be a /24');
  }
  if (subnet.prefix > 26) {
    throw new ReasonedError('NetworkUnavailable', 'the guests need a subnet of /26 or larger');
  }
  const id = hash(options.bridge, 4);
  return {
    bridge: options.bridge,
    bridgeMac: stableMac(`bridge ${options.bridge}`),
    table: options.table,
    subnet,
    gateway: addressAt(subnet, 1),
    hostAddress: options.hostAddress,
    forbidden: options.forbidden,
    connectionsPerGuest: options.connectionsPerGuest,
    tapPrefix: `bt${id}`,
    probe: {
      innerPort: `bp${id}i`,
      innerMac: stableMac(`probe ${options.bridge}`),
      innerAddress: addressAt(subnet, 2),
      outerPort: `bp${id}o`,
      outerSubnet,
      outerGateway: addressAt(outerSubnet, 1),
      outerAddress: addressAt(outerSubnet, 2),
    },
  };
}

/** Device name of a machine's tap: at most 15 characters, the same for the same uid. */
export function tapName(layout: Layout, uid: string): string {
  return layout.tapPrefix + hash(uid, 8);
}

/**
 * An address for a machine that none of the others has, the same for the same uid as long as it is free.
 *
 * @throws ReasonedError `NetworkUnavailable` when the subnet is full.
 */
export function chooseAddress(layout: Layout, uid: string, taken: ReadonlySet<string>): string {
  const room = sizeOf(layout.subnet) - FIRST_GUEST - 1;
  const start = Number.parseInt(hash(uid, 8), 16) % room;
  for (let step = 0; step < room; step++) {
    const address = addressAt(layout.subnet, FIRST_GUEST + ((start + step) % room));
    if (!taken.has(address)) {
      return address;
    }
  }
  throw new ReasonedError('NetworkUnavailable', `no free address in the guests' subnet of ${room}`);
}
