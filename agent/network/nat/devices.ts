/** Reads from the kernel which network devices and routes this host has, and plans and makes changes of single devices. */
import { readFile, writeFile } from 'node:fs/promises';
import * as z from 'zod';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import { ip, run } from '../commands.ts';

export interface Link {
  /** Number by which the kernel identifies the device in its network namespace. */
  index: number;
  /** Number of the other device of a veth pair, in the network namespace of that device. */
  peer: number | undefined;
  /** Kind of device: `bridge`, `tun`, `veth`, …; empty for a physical device. */
  kind: string;
  up: boolean;
  master: string | undefined;
  isolated: boolean;
  /** IPv4 addresses in the form `a.b.c.d/len`. */
  addresses: string[];
  /**
   * Whether the host has an IPv6 address on the device. By default the kernel gives an IPv6 address to each device, even to the ports of a
   * bridge.
   */
  ipv6: boolean;
  /** Whether the device has a carrier: a process has opened the tap, or the peer device of the veth pair is up. */
  carrier: boolean;
}

export type Links = ReadonlyMap<string, Link>;

const linkSchema = z.object({
  ifname: z.string().optional(),
  ifindex: z.number().default(0),
  link_index: z.number().optional(),
  flags: z.array(z.string()).default([]),
  master: z.string().optional(),
  linkinfo: z
    .object({
      info_kind: z.string().default(''),
      info_slave_data: z.object({ isolated: z.boolean().optional() }).optional(),
    })
    .optional(),
  addr_info: z
    .array(
      z.object({
        family: z.string().optional(),
        local: z.string().optional(),
        prefixlen: z.number().optional(),
      }),
    )
    .default([]),
});

function toLink(raw: z.infer<typeof linkSchema>): Link {
  return {
    index: raw.ifindex,
    peer: raw.link_index,
    kind: raw.linkinfo?.info_kind ?? '',
    up: raw.flags.includes('UP'),
    master: raw.master,
    isolated: raw.linkinfo?.info_slave_data?.isolated === true,
    addresses: raw.addr_info
      .filter((one) => one.family === 'inet')
      .map((one) => `${one.local}/${one.prefixlen}`),
    ipv6: raw.addr_info.some((one) => one.family === 'inet6'),
    carrier: raw.flags.includes('LOWER_UP'),
  };
}

/** Reads all network devices of this process's network namespace, by name. */
export async function readLinks(): Promise<Links> {
  return parseLinks(await run('ip', ['-json', '-details', 'address', 'show']));
}

/** Parses the output of `ip -json -details address show`. @throws Error when the text is not such output. */
export function parseLinks(text: string): Links {
  const raw = z.array(linkSchema).parse(JSON.parse(text));
  return new Map(
    raw.flatMap((one) => (one.ifname === undefined ? [] : [[one.ifname, toLink(one)] as const])),
  );
}

export interface Route {
  /** Target: an address, a subnet or `default`. */
  dst: string;
  /** Address of the router; undefined if the route uses no router. */
  gateway?: string | undefined;
  /** Device; empty if the kernel drops the packets, or if the route has several devices. */
  dev: string;
}

const routesSchema = z.array(
  z.object({ dst: z.string(), gateway: z.string().optional(), dev: z.string().default('') }),
);

/** Reads the routes of this process's network namespace to a subnet and to its parts. The subnet has the form `a.b.c.d/len`. */
export async function readRoutes(subnet: string): Promise<Route[]> {
  return parseRoutes(await run('ip', ['-json', 'route', 'show', 'root', subnet]));
}

/** Parses the output of `ip -json route show`. @throws Error when the text is not such output. */
export function parseRoutes(text: string): Route[] {
  return routesSchema.parse(JSON.parse(text));
}

/** Returns the path of the kernel's switch for the forwarding of IPv4 packets: of all devices, or of one device. */
export function forwardingSwitch(device?: string): string {
  return device === undefined
    ? '/proc/sys/net/ipv4/ip_forward'
    : `/proc/sys/net/ipv4/conf/${device}/forwarding`;
}

/** Returns whether the kernel forwards IPv4 packets of all devices, or of one device. A missing device counts as one that forwards. */
export async function readForwarding(device?: string): Promise<boolean> {
  const text = await undefinedIf(isMissing, readFile(forwardingSwitch(device), 'utf8'));
  return text?.trim() !== '0';
}

/** Address and mask of default routes in /proc/net/route. */
const EVERYWHERE = '00000000';

/** Returns the devices of the default routes with the lowest metric in a text of /proc/net/route. The kernel uses only these. */
export function parseUplinks(text: string): string[] {
  const routes = text.split('\n').map((line) => line.split('\t'));
  const defaults = routes.filter(
    ([, target, , , , , , mask]) => target === EVERYWHERE && mask === EVERYWHERE,
  );
  const lowest = Math.min(...defaults.map((route) => Number(route[6])));
  const used = defaults.filter((route) => Number(route[6]) === lowest);
  return [...new Set(used.map(([device = '']) => device))];
}

/**
 * Returns the devices that lead outside, but from which the kernel forwards no packets. Answers to guests that arrive at such a device are
 * lost. An administrator can switch off the forwarding of a single device.
 */
export async function readClosedUplinks(): Promise<string[]> {
  const closed: string[] = [];
  for (const device of parseUplinks(await readFile('/proc/self/net/route', 'utf8'))) {
    if (!(await readForwarding(device))) {
      closed.push(device);
    }
  }
  return closed;
}

/**
 * Deletes a network device. The function also succeeds if the device is missing, because the kernel can have deleted it. For example, if a
 * network namespace contains one device of a veth pair, the kernel deletes both devices together with the namespace.
 */
export async function deleteDevice(device: string): Promise<void> {
  try {
    await ip([`link delete ${device}`]);
  } catch (error) {
    if ((await readLinks()).has(device)) {
      throw error;
    }
  }
}

/** Switches IPv6 off for a device. If the file of this switch is missing, the kernel has no IPv6, and the function does nothing. */
export async function disableIPv6(device: string): Promise<void> {
  await undefinedIf(isMissing, writeFile(`/proc/sys/net/ipv6/conf/${device}/disable_ipv6`, '1'));
}

export type DeviceRepair =
  | { kind: 'addressDevice'; device: string; address: string }
  | { kind: 'raiseDevice'; device: string }
  | { kind: 'disableIPv6'; device: string };

/**
 * Plans the repair that disables IPv6 on a device. If the host had an IPv6 address there, guests would see the host as a neighbour on their
 * link.
 */
export function planWithoutIPv6(device: string, link: Link | undefined): DeviceRepair[] {
  return link === undefined || link.ipv6 ? [{ kind: 'disableIPv6', device }] : [];
}

/** Plans the repairs that bring a device up and give it the address. The address has the form `a.b.c.d/len`. */
export function planAddressed(device: string, address: string, link: Link | undefined): DeviceRepair[] {
  const repairs: DeviceRepair[] = [];
  if (!link?.addresses.includes(address)) {
    repairs.push({ kind: 'addressDevice', device, address });
  }
  if (!link?.up) {
    repairs.push({ kind: 'raiseDevice', device });
  }
  return repairs;
}
