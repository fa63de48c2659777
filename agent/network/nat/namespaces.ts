/**
 * Plans, creates and configures the network namespaces of programs in the kernel, and their connections to this host. As with `ip netns`,
 * each namespace is mounted on a file, so that it exists even without a process. The files are in the data directory, where a new container
 * of the agent finds them.
 */
import { mkdir, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { isMissing, messageOf, undefinedIf } from '../../../base/errors.ts';
import { run } from '../commands.ts';
import { fingerprint, parseRuleset } from '../nftables.ts';
import type { NamespaceAttachment } from './attachments.ts';
import {
  deleteDevice,
  type DeviceRepair,
  type Link,
  type Links,
  parseLinks,
  parseRoutes,
  planWithoutIPv6,
  readRoutes,
  type Route,
} from './devices.ts';
import { formatSubnet } from './ipv4.ts';
import { type NatLayout, namespaceMacs, namespacePath } from './layout.ts';

/**
 * Largest number of mounts that are removed from one file. A file normally has one mount. Each program that mounts something over the file
 * adds one mount.
 */
const MAXIMUM_MOUNTS = 16;

/**
 * Shell script that prints the devices, the routes, the nftables rules and one kernel switch of a network namespace, each on a separate
 * line. One shell takes half of the time of four separate processes. The argument is the path of the kernel switch. If the device of the
 * namespace is missing, this path does not exist, and the script prints 0.
 */
const READ_ALL =
  'ip -json -details address show && ip -json route show && nft --json list ruleset && { cat "$1" 2> /dev/null || echo 0; }';

/** Switches IPv6 off if the kernel supports IPv6. The argument is the path of the kernel switch. */
const DISABLE_IPV6 = '[ ! -e "$1" ] || echo 1 > "$1"';

/**
 * Shell script that configures a network namespace. The input contains commands for `ip`. The two arguments are the paths of the kernel
 * switches for IPv6 and loopback.
 */
const CONFIGURE = `ip -batch - && { ${DISABLE_IPV6}; } && echo 1 > "$2"`;

/** Deletes the device that the argument names, if it exists. */
const DELETE_DEVICE = 'if ip link show dev "$1" > /dev/null 2>&1; then ip link delete "$1"; fi';

/** Replaces the nftables rules by those in the input, and prints the rules that the kernel has afterwards. */
const LOAD_RULES = 'nft -f - && nft --json list ruleset';

const OWN_NAMESPACE = '/proc/self/ns/net';
const NO_NAMESPACES: NamespacesObserved = { files: new Map(), unreadable: new Map(), routes: [] };

export class Namespaces {
  readonly #layout: NatLayout;
  readonly #tables: readonly string[];
  /**
   * The nftables script that was loaded last in each network namespace, and the fingerprint of the rules that the kernel had afterwards.
   * The key is the name of the namespace's device.
   */
  readonly #loaded = new Map<string, { script: string; fingerprint: string }>();

  constructor(layout: NatLayout) {
    this.#layout = layout;
    this.#tables = [`inet ${layout.table}`];
  }

  async observe(wanted: readonly NamespaceAttachment[]): Promise<NamespacesObserved> {
    const names = (await undefinedIf(isMissing, readdir(this.#layout.namespaces.folder))) ?? [];
    if (names.length === 0) {
      return NO_NAMESPACES;
    }
    const attachments = new Map(wanted.map((one) => [one.device, one]));
    const files = new Map<string, Inside | undefined>();
    const unreadable = new Map<string, string>();
    const range = formatSubnet(this.#layout.probe.outerSubnet);
    const [routes] = await Promise.all([
      readRoutes(range),
      ...names.map(async (name) => {
        try {
          files.set(name, await this.#inside(name, attachments.get(name)));
        } catch (error) {
          unreadable.set(name, `Network namespace ${name} could not be read: ${messageOf(error)}`);
        }
      }),
    ]);
    return { files, unreadable, routes };
  }

  async #inside(name: string, attachment: NamespaceAttachment | undefined): Promise<Inside | undefined> {
    const path = namespacePath(this.#layout, name);
    if (attachment === undefined || !(await holdsNamespace(path))) {
      return undefined;
    }
    const text = await inNamespace(path, READ_ALL, [loopbackSwitch(name)]);
    const [links = '', routes = '', ruleset = '', leads] = text.split('\n');
    const loaded = this.#loaded.get(name);
    const isLoaded = loaded?.script === insideScript(this.#layout, attachment);
    return {
      links: parseLinks(links),
      routes: parseRoutes(routes),
      leadsToLoopback: leads === '1',
      rulesCurrent: isLoaded && loaded?.fingerprint === fingerprint(parseRuleset(ruleset), this.#tables),
    };
  }

  /** Performs a repair, except its `ip` commands for this host's own network namespace. The caller must run those commands first. */
  async perform(
    repair: NamespaceRepair,
    wanted: readonly NamespaceAttachment[],
    observed: { links: Links; namespaces: NamespacesObserved },
  ): Promise<void> {
    const { device } = repair;
    const path = namespacePath(this.#layout, device);
    switch (repair.kind) {
      case 'createNamespace':
        return await create(path);
      case 'removeNamespace':
        return await remove(path);
      case 'createPair': {
        const isThereInside = observed.namespaces.files.get(device)?.links.has(device) === true;
        return await this.#createPair(device, { outside: observed.links.has(device), inside: isThereInside });
      }
      case 'configureInside': {
        const commands = insideCommands(this.#layout, repair);
        const switches = [ipv6Switch(device), loopbackSwitch(device)];
        await inNamespace(path, CONFIGURE, switches, `${commands.join('\n')}\n`);
        return undefined;
      }
      case 'loadInsideRules':
        return await this.#loadRules(wanted.find((one) => one.device === device));
      default:
        return undefined;
    }
  }

  /** Removes all network namespaces of programs. */
  async remove(): Promise<void> {
    const { folder } = this.#layout.namespaces;
    for (const name of (await undefinedIf(isMissing, readdir(folder))) ?? []) {
      await remove(namespacePath(this.#layout, name));
    }
    await rm(folder, { recursive: true, force: true });
  }

  /**
   * Connects a network namespace to this host through a new pair of devices. Before that, the function deletes old devices with the same
   * name. `found` tells whether an old device exists on the host (`outside`), and whether one exists in the namespace (`inside`).
   */
  async #createPair(device: string, found: { outside: boolean; inside: boolean }): Promise<void> {
    const path = namespacePath(this.#layout, device);
    const { outside, inside } = namespaceMacs(device);
    if (found.outside) {
      await deleteDevice(device);
    }
    if (found.inside) {
      // The device in the network namespace might be gone already, because the kernel deletes both devices of a pair together.
      await inNamespace(path, DELETE_DEVICE, [device]);
    }
    const ends = [
      [device, 'address', outside],
      ['type', 'veth', 'peer', 'name', device, 'address', inside, 'netns', path],
    ];
    await run('ip', ['link', 'add', ...ends.flat()]);
  }

  async #loadRules(attachment: NamespaceAttachment | undefined): Promise<void> {
    if (attachment === undefined) {
      return;
    }
    const path = namespacePath(this.#layout, attachment.device);
    const script = insideScript(this.#layout, attachment);
    const ruleset = parseRuleset(await inNamespace(path, LOAD_RULES, [], script));
    this.#loaded.set(attachment.device, { script, fingerprint: fingerprint(ruleset, this.#tables) });
  }
}

/** Runs a shell script in a network namespace, and returns its output. */
async function inNamespace(
  path: string,
  script: string,
  args: readonly string[],
  input?: string,
): Promise<string> {
  return await run('nsenter', [`--net=${path}`, 'sh', '-c', script, 'sh', ...args], input);
}

/** Returns whether a network namespace is mounted on the file. The namespace of this process does not count. */
async function holdsNamespace(path: string): Promise<boolean> {
  const [file, own] = await Promise.all([undefinedIf(isMissing, stat(path)), stat(OWN_NAMESPACE)]);
  // All namespaces are in one file system of the kernel, and nothing else is in it. So the file is a namespace if it is in the same file
  // system as the namespace of this process.
  return file !== undefined && file.dev === own.dev && file.ino !== own.ino;
}

async function create(path: string): Promise<void> {
  await remove(path);
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  await writeFile(path, '');
  // Switches IPv6 off in the defaults for new devices, so that no later device of the network namespace has IPv6.
  await run('unshare', [`--net=${path}`, 'sh', '-c', DISABLE_IPV6, 'sh', ipv6Switch('default')]);
}

async function remove(path: string): Promise<void> {
  for (let mounts = 0; mounts < MAXIMUM_MOUNTS && (await isMounted(path)); mounts++) {
    await run('umount', ['--lazy', path]);
  }
  await rm(path, { force: true });
}

/** Returns whether another file system is mounted over the file. */
async function isMounted(path: string): Promise<boolean> {
  const [file, folder] = await Promise.all([
    undefinedIf(isMissing, stat(path)),
    undefinedIf(isMissing, stat(dirname(path))),
  ]);
  return file !== undefined && file.dev !== folder?.dev;
}

/** Path of the kernel switch that allows packets from a device to go to the loopback address. */
function loopbackSwitch(device: string): string {
  return `/proc/sys/net/ipv4/conf/${device}/route_localnet`;
}

function ipv6Switch(device: string): string {
  return `/proc/sys/net/ipv6/conf/${device}/disable_ipv6`;
}

/**
 * Returns the script with the rules in a network namespace. In the namespace, the kernel tracks only connections to the exposed port. The
 * tracking of other connections would need kernel memory without a limit, because the limits on the host do not apply in the namespace.
 * Only Berth uses the namespace, so the script replaces all rules in the namespace.
 */
function insideScript(layout: NatLayout, { device, address, exposedPort }: NamespaceAttachment): string {
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

/** Contents of a network namespace. */
export interface Inside {
  links: Links;
  routes: readonly Route[];
  /** Whether the kernel accepts packets to the loopback address that arrive on the device of the network namespace. */
  leadsToLoopback: boolean;
  /** Whether the network namespace contains exactly the rules that were loaded for this attachment. */
  rulesCurrent: boolean;
}

export interface NamespacesObserved {
  /**
   * Contents of the network namespaces. The key is the name of the namespace's file. The value is undefined if no namespace is mounted on
   * the file, or if no attached program has this namespace.
   */
  files: ReadonlyMap<string, Inside | undefined>;
  /**
   * Reasons why network namespaces could not be read. The key is the name of the namespace's file. An unreadable namespace is not changed,
   * because a program might use it.
   */
  unreadable: ReadonlyMap<string, string>;
  /** Routes of this host to addresses of network namespaces. */
  routes: readonly Route[];
}

/**
 * Repair of a network namespace. `device` is the name of the namespace's file and of two connected devices: one on the host, and one in the
 * namespace. A single command configures the whole host side or the whole namespace side, because starting a command takes longer than all
 * settings together. `missing` describes the missing settings, for messages to users.
 */
export type NamespaceRepair =
  | { kind: 'createNamespace'; device: string }
  | { kind: 'removeNamespace'; device: string }
  | { kind: 'createPair'; device: string }
  | { kind: 'configureOutside'; device: string; address: string; missing: readonly string[] }
  | { kind: 'configureInside'; device: string; address: string; missing: readonly string[] }
  | { kind: 'loadInsideRules'; device: string };

const LOOPBACK = 'lo';
const NEW_NAMESPACE: Inside = { links: new Map(), routes: [], leadsToLoopback: false, rulesCurrent: false };

/** Returns the repairs of all network namespaces in the order in which they must be done. */
export function planNamespaces(
  layout: NatLayout,
  wanted: readonly NamespaceAttachment[],
  links: Links,
  observed: NamespacesObserved,
): (NamespaceRepair | DeviceRepair)[] {
  const devices = new Set(wanted.map(({ device }) => device));
  const strays = [...observed.files.keys()].filter((file) => !devices.has(file));
  return [
    ...strays.map((device) => ({ kind: 'removeNamespace', device }) as const),
    ...wanted
      .filter(({ device }) => !observed.unreadable.has(device))
      .flatMap((one) => planNamespace(layout, one, links, observed)),
  ];
}

/** Plans the repairs of one network namespace. If the namespace is missing, the plan also contains the repairs of its contents. */
function planNamespace(
  layout: NatLayout,
  { device, address }: NamespaceAttachment,
  links: Links,
  observed: NamespacesObserved,
): (NamespaceRepair | DeviceRepair)[] {
  const found = observed.files.get(device);
  const inside = found ?? NEW_NAMESPACE;
  const isPaired = arePaired(links.get(device), inside.links.get(device));
  // If the devices are not paired with each other, their properties do not matter, because new devices replace them.
  const [outer, inner] = isPaired ? [links.get(device), inside.links.get(device)] : [];
  const outerMissing = missingOutside(layout, { device, address }, outer, observed.routes);
  const innerMissing = missingInside(layout, { device, address }, inner, inside);
  return [
    ...(found === undefined ? [{ kind: 'createNamespace', device } as const] : []),
    ...(isPaired ? [] : [{ kind: 'createPair', device } as const]),
    ...planWithoutIPv6(device, outer),
    ...planSide({ kind: 'configureOutside', device, address, missing: outerMissing }),
    ...planSide({ kind: 'configureInside', device, address, missing: innerMissing }),
    ...(inside.rulesCurrent ? [] : [{ kind: 'loadInsideRules', device } as const]),
  ];
}

function planSide(repair: Extract<NamespaceRepair, { missing: readonly string[] }>): NamespaceRepair[] {
  return repair.missing.length === 0 ? [] : [repair];
}

/** Returns whether both devices are the ends of one veth pair. */
function arePaired(outside: Link | undefined, inside: Link | undefined): boolean {
  return (
    outside?.kind === 'veth' &&
    inside?.kind === 'veth' &&
    outside.peer === inside.index &&
    inside.peer === outside.index
  );
}

interface Connection {
  device: string;
  address: string;
}

function missingOutside(
  { namespaces }: NatLayout,
  { device, address }: Connection,
  link: Link | undefined,
  routes: readonly Route[],
): string[] {
  const isUp = link?.up === true;
  return falseIn({
    [`the address ${namespaces.gateway}/32`]: hasAddress(link, namespaces.gateway),
    'the state "up"': isUp,
    // While the device is down, the route counts as missing, because the kernel removes the route when the device goes down.
    [`the route to ${address}`]: isUp && routes.some(({ dst, dev }) => dst === address && dev === device),
  });
}

function missingInside(
  layout: NatLayout,
  { device, address }: Connection,
  link: Link | undefined,
  { links, routes, leadsToLoopback }: Inside,
): string[] {
  const isUp = link?.up === true;
  return falseIn({
    'an active loopback device': links.get(LOOPBACK)?.up === true,
    'a device without IPv6': link?.ipv6 !== true,
    [`the address ${address}`]: hasAddress(link, address),
    'an active device': isUp,
    'its routes': isUp && isRouted(layout, device, routes),
    'the forwarding to its loopback address': link !== undefined && leadsToLoopback,
  });
}

function falseIn(parts: Readonly<Record<string, boolean>>): string[] {
  return Object.entries(parts).flatMap(([part, isRight]) => (isRight ? [] : [part]));
}

function hasAddress(link: Link | undefined, address: string): boolean {
  return link?.addresses.includes(`${address}/32`) === true;
}

function isRouted({ namespaces }: NatLayout, device: string, routes: readonly Route[]): boolean {
  const { gateway } = namespaces;
  const isThere = (dst: string, via?: string) =>
    routes.some((one) => one.dst === dst && one.gateway === via && one.dev === device);
  return isThere(gateway) && isThere('default', gateway);
}

/** Returns the `ip` commands that configure the host side of a network namespace: the host's device, and the route to the namespace. */
export function outsideCommands({ namespaces }: NatLayout, { device, address }: Connection): string[] {
  return [
    `address replace ${namespaces.gateway}/32 dev ${device}`,
    `link set ${device} up`,
    `route replace ${address}/32 dev ${device}`,
  ];
}

/** Returns the `ip` commands that configure a network namespace. The caller must run these commands in the namespace. */
export function insideCommands({ namespaces }: NatLayout, { device, address }: Connection): string[] {
  return [
    `link set ${LOOPBACK} up`,
    `address replace ${address}/32 dev ${device}`,
    `link set ${device} up`,
    `route replace ${namespaces.gateway}/32 dev ${device}`,
    `route replace default via ${namespaces.gateway} dev ${device}`,
  ];
}

/** Sentences for users. Each sentence says why a repair is necessary. */
const DIFFERENCES: {
  [K in NamespaceRepair['kind']]: (repair: Extract<NamespaceRepair, { kind: K }>) => string;
} = {
  createNamespace: ({ device }) => `Network namespace ${device} was missing`,
  removeNamespace: ({ device }) => `Network namespace ${device} was left over`,
  createPair: ({ device }) => `Network namespace ${device} was not connected to this host`,
  configureOutside: ({ device, missing }) => `Device ${device} did not have ${missing.join(', ')}`,
  configureInside: ({ device, missing }) => `Network namespace ${device} did not have ${missing.join(', ')}`,
  loadInsideRules: ({ device }) =>
    `The nftables rules in network namespace ${device} were missing or changed`,
};

/** Returns whether a repair concerns a network namespace, and not a device or rule of this host. */
export function isOfNamespace(repair: { kind: string }): repair is NamespaceRepair {
  return repair.kind in DIFFERENCES;
}

/** Returns a sentence for users that says why the repair is necessary, for example that a device was missing. */
export function describeNamespaceDifference(repair: NamespaceRepair): string {
  return (DIFFERENCES[repair.kind] as (repair: NamespaceRepair) => string)(repair);
}
