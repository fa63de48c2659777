/**
 * Derives the health of the network and of each machine's connection from the results of a check: failed repairs, lost packets, rules of
 * other programs, and refused connections. Nothing here reads or changes the host.
 */
import { portName } from '../../../api/v1alpha1/ports.ts';
import type { NetworkReport } from '../network.ts';
import { countedPackets, type RulesetEntry } from '../nftables.ts';
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import type { Attachment, NamespaceAttachment, WantedAttachments } from './attachments.ts';
import { chainsStopping, chainsStoppingInput, type ForeignTables, type RuleSubject } from './foreignrules.ts';
import { isInOneNetwork } from './ipv4.ts';
import { type NatLayout, namespaceMacs } from './layout.ts';
import { describeDifference, type ObservedNetwork, ownDevices, type Repair, sharedDevices } from './plan.ts';
import type { Links, Route } from './devices.ts';
import { HOST_PORTS, PATHS, type ProbePath } from './probe.ts';
import { refusalCounter } from './rulewords.ts';

/**
 * Largest number of failed repairs in one message. The limit is necessary, because one cause can make the repairs of all machines fail, and
 * the length of a message is limited.
 */
const NAMED_FAILURES = 3;

/**
 * Failed repairs of a check. A failed repair of a network namespace concerns only that namespace. Every other failed repair counts as a
 * fault of all machines.
 */
export interface FailedRepairs {
  /** Message about the failed repairs that count as faults of all machines; undefined if there are none. */
  failedRepair: string | undefined;
  /** Messages about network namespaces that could not be read or repaired. The key is the name of the namespace's device. */
  failedNamespaces: ReadonlyMap<string, string>;
}

export interface Evidence extends FailedRepairs {
  /** Messages about foreign devices. Another program gave them names that Berth needs for its own devices. The key is the name. */
  foreignDevices: ReadonlyMap<string, string>;
  /** Devices of this host. */
  links: Links;
  /** Routes of this host to addresses of guests. */
  guestRoutes: readonly Route[];
  /** Devices that lead outside, but from which the kernel forwards no packets. */
  closedUplinks: readonly string[];
  /** Paths through the network on which the probe's test packets were lost. */
  lostPaths: readonly ProbePath[];
  foreign: ForeignTables;
  /**
   * Names of taps that were deleted while a hypervisor had them open, even if a repair has created them again. The guest of such a
   * hypervisor has no network.
   */
  lostTaps: ReadonlySet<string>;
  /**
   * Network namespaces that a repair created again, each by the name of its device. A program that continues to run in the former namespace
   * has no network.
   */
  lostNamespaces: ReadonlySet<string>;
  /** Reasons why reserved ports are not forwarded. The key is the port's name. */
  withheldPorts: ReadonlyMap<string, string>;
}

function explainLoss(path: ProbePath, culprits: readonly string[]): string {
  const lost = `Packets ${PATHS[path]} are lost`;
  return culprits.length === 0
    ? lost
    : `${lost}; other programs drop packets in ${culprits.join(' and in ')}`;
}

function explainClosed(device: string): string {
  const reported = `Device ${device} leads outside, but the kernel forwards no packets from it, so guests get no answers`;
  // The name has slashes, because sysctl reads a dot in the name of a device as a slash.
  return `${reported}; set net/ipv4/conf/${device}/forwarding to 1`;
}

/** Properties of one machine and of its connection, from which the report is made. */
interface Member extends RuleSubject {
  uid: string;
  ports: readonly MachinePort[];
  /** Word that messages use for the connected guest or program: `guest` or `program`. */
  what: string;
  /** Fault of the connection itself; undefined if there is none. */
  fault: string | undefined;
}

function guest(one: Attachment, layout: NatLayout, evidence: Evidence): Member {
  const { bridge } = layout;
  const lost = `The tap ${one.tap} of the running machine was deleted; restart the machine`;
  const fault = evidence.lostTaps.has(one.tap) ? lost : misrouting(layout, one.address, evidence);
  return { ...one, port: one.tap, bridge, what: 'guest', fault };
}

/**
 * Returns a message if the host sends packets for a guest's address elsewhere. The cause is a smaller network that contains the address:
 * another device has such a network, or a route leads to it, for example from a VPN. `findOverlap` in plan.ts finds networks of devices
 * only when the agent starts.
 */
function misrouting(
  layout: NatLayout,
  address: string,
  { links, guestRoutes }: { links: Links; guestRoutes: readonly Route[] },
): string | undefined {
  const holds = (network: string): boolean => {
    const [host = '', length = '32'] = network.split('/');
    const prefix = Number(length);
    return prefix > layout.subnet.prefix && isInOneNetwork(host, address, prefix);
  };
  for (const [name, link] of links) {
    const network = link.addresses.find(holds);
    if (name !== layout.bridge && network !== undefined) {
      const cause = `Device ${name} has the network ${network}, so the host sends packets for ${address} there`;
      return `${cause}; remove this network, or choose another network.subnet`;
    }
  }
  const route = guestRoutes.find(({ dst, dev }) => dev !== layout.bridge && holds(dst));
  return (
    route &&
    `The route to ${route.dst} leads packets for ${address} to ${route.dev === '' ? 'no device' : `device ${route.dev}`}; remove this route, or choose another network.subnet`
  );
}

function program(one: NamespaceAttachment, { lostNamespaces, failedNamespaces }: Evidence): Member {
  const { device } = one;
  const lost = `The network namespace ${device} of the running program was removed; the program has no network until its next start`;
  const fault = lostNamespaces.has(device) ? lost : failedNamespaces.get(device);
  const macAddress = namespaceMacs(device).inside;
  return { ...one, macAddress, port: device, bridge: device, what: 'program', fault };
}

/**
 * Returns the network fault of one machine; undefined if there is none. If nftables chains of other programs drop the machine's packets,
 * that is a fault. Chains that also drop the probe's test packets (`probed`) are ignored here, because the loss of test packets is reported
 * separately.
 */
function machineFault(one: Member, evidence: Evidence, probed: Set<string>): string | undefined {
  const known = evidence.foreignDevices.get(one.port) ?? one.fault;
  if (known !== undefined) {
    return known;
  }
  const withheld = one.ports.map((port) => evidence.withheldPorts.get(portName(port)));
  const ports = withheld.filter((fault) => fault !== undefined).join('; ');
  if (ports !== '') {
    return `These reserved ports do not lead to the ${one.what}: ${ports}`;
  }
  const culprits = chainsStopping(evidence.foreign, one).filter((chain) => !probed.has(chain));
  return culprits.length === 0
    ? undefined
    : `Other programs drop packets of ${one.address} in ${culprits.join(' and in ')}`;
}

/** Returns the report of a check. The caller adds the fields `repaired` and `refusedConnections`. */
export function reportOn(
  layout: NatLayout,
  wanted: WantedAttachments,
  evidence: Evidence,
): Omit<NetworkReport, 'repaired' | 'refusedConnections'> {
  const { innerAddress: address, innerMac: macAddress, innerPort: port } = layout.probe;
  const probe: RuleSubject = { address, macAddress, port, bridge: layout.bridge };
  const culprits = chainsStopping(evidence.foreign, probe);
  const culpritsOf = (path: ProbePath): string[] => {
    const port = HOST_PORTS[path];
    return port === undefined
      ? culprits
      : [...culprits, ...chainsStoppingInput(evidence.foreign, probe, port)];
  };
  const general = [
    ...sharedDevices(layout).flatMap((device) => evidence.foreignDevices.get(device) ?? []),
    ...(evidence.failedRepair === undefined ? [] : [evidence.failedRepair]),
    ...evidence.closedUplinks.map(explainClosed),
    ...evidence.lostPaths.map((path) => explainLoss(path, culpritsOf(path))),
  ];
  const probed = new Set(culprits);
  const machines: NetworkReport['machines'] = {};
  const devices = new Set(wanted.namespaces.map(({ device }) => device));
  const leftovers = [...evidence.failedNamespaces].filter(([device]) => !devices.has(device));
  const single = leftovers.map(([, failure]) => failure);
  const members = [
    ...wanted.machines.map((one) => guest(one, layout, evidence)),
    ...wanted.namespaces.map((one) => program(one, evidence)),
  ];
  for (const one of members) {
    const fault = machineFault(one, evidence, probed);
    if (fault !== undefined) {
      single.push(`Machine ${one.uid}: ${fault}`);
    }
    const faults = [...general, ...(fault === undefined ? [] : [fault])];
    const message =
      faults.length === 0
        ? `The ${one.what} is connected as ${one.address}; test packets reach their target`
        : faults.join('; ');
    machines[one.uid] = { healthy: faults.length === 0, message };
  }
  return { healthy: general.length === 0, faults: [...general, ...single], machines };
}

/**
 * Returns the reason why a member is not completely detached; undefined if it is detached. A failed repair counts only if it can be the
 * reason. Other failed repairs must not keep the member's address and ports in use.
 *
 * @param device name of the member's device.
 * @param observed the state after the repairs.
 */
export function detachFault(
  layout: NatLayout,
  device: string,
  { failedRepair, failedNamespaces }: FailedRepairs,
  { links, rulesCurrent }: Pick<ObservedNetwork, 'links' | 'rulesCurrent'>,
): string | undefined {
  const isLeft = !rulesCurrent || ownDevices(layout, links).includes(device);
  return failedNamespaces.get(device) ?? (isLeft ? failedRepair : undefined);
}

/** Returns one message about failed repairs, with the first few repairs and the number of the other repairs. */
function describeFailures(failures: readonly string[]): string {
  const others = failures.length - NAMED_FAILURES;
  const rest = others > 0 ? [`Further failed repairs: ${others}`] : [];
  return [...failures.slice(0, NAMED_FAILURES), ...rest].join('; ');
}

/** Collects the failed repairs of a check. */
export class NetworkFailures {
  readonly #layout: NatLayout;
  readonly #general: string[] = [];
  /** First failure of each network namespace. The key is the name of the namespace's device. */
  readonly #namespaces = new Map<string, string>();

  constructor(layout: NatLayout) {
    this.#layout = layout;
  }

  /** Whether there is a failed repair that counts as a fault of all machines. */
  get areGeneral(): boolean {
    return this.#general.length > 0;
  }

  /**
   * Returns whether an earlier repair of the same network namespace has failed. In this case, further repairs of this namespace would fail
   * too.
   */
  precludes(repair: Repair): boolean {
    return 'device' in repair && this.#namespaces.has(repair.device);
  }

  /**
   * Adds a failed repair with the reason. A failed repair of a network namespace counts only for that namespace, because it does not affect
   * any machine or any other namespace.
   */
  add(repair: Repair, why: string): void {
    const failure = `${describeDifference(this.#layout, repair)}, and ${why}`;
    if ('device' in repair && repair.device.startsWith(this.#layout.namespaces.prefix)) {
      this.#namespaces.set(repair.device, this.#namespaces.get(repair.device) ?? failure);
    } else {
      this.#general.push(failure);
    }
  }

  /** Returns the messages about the failures: one for all machines, and one for each network namespace. */
  described(): FailedRepairs {
    const failedRepair = this.areGeneral ? describeFailures(this.#general) : undefined;
    return { failedRepair, failedNamespaces: this.#namespaces };
  }
}

/** Counts the packets that the rules drop because a guest has reached its limit of connections. */
export class RefusedConnections {
  readonly #tables: readonly string[];
  /** Number of refused packets that each nftables counter had at the last count. The key is the counter's name. */
  #last: ReadonlyMap<string, number> = new Map();

  constructor(tables: readonly string[]) {
    this.#tables = tables;
  }

  /**
   * Returns the number of refused packets of each machine since the last count. The key is the machine's uid. If a counter is lower than at
   * the last count, a replacement of the rules has reset the counter to 0.
   *
   * @param devices taps, and devices of network namespaces; the key is the machine's uid.
   */
  count(ruleset: readonly RulesetEntry[], devices: ReadonlyMap<string, string>): Record<string, number> {
    const before = this.#last;
    this.#last = new Map(this.#tables.flatMap((table) => [...countedPackets(ruleset, table)]));
    const refused: Record<string, number> = {};
    for (const [uid, device] of devices) {
      const name = refusalCounter(device);
      const [then, now] = [before.get(name) ?? 0, this.#last.get(name) ?? 0];
      const since = now < then ? now : now - then;
      if (since > 0) {
        refused[uid] = since;
      }
    }
    return refused;
  }
}
