/**
 * Reads, creates and configures the network namespaces of programs in the kernel. As with `ip netns`, each namespace is mounted on a file,
 * so that it exists even without a process. The files are in the data directory, where a new container of the agent finds them.
 */
import { mkdir, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { isMissing, messageOf, undefinedIf } from '../../../base/errors.ts';
import { run } from '../commands.ts';
import { fingerprint, parseRuleset } from '../nftables.ts';
import type { NamespaceAttachment } from './attachments.ts';
import { deleteDevice } from './devices.ts';
import { formatSubnet } from './ipv4.ts';
import { type Layout, namespaceMacs, namespacePath } from './layout.ts';
import {
  type Inside,
  insideCommands,
  type NamespaceRepair,
  type NamespacesObserved,
} from './namespaceplan.ts';
import { insideScript } from './namespacerules.ts';
import { type Links, parseLinks, parseRoutes, readRoutes } from './observe.ts';

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
  readonly #layout: Layout;
  readonly #tables: readonly string[];
  /**
   * The nftables script that was loaded last in each network namespace, and the fingerprint of the rules that the kernel had afterwards.
   * The key is the name of the namespace's device.
   */
  readonly #loaded = new Map<string, { script: string; fingerprint: string }>();

  constructor(layout: Layout) {
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
