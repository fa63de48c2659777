/**
 * Implements the `nat` network on Linux: a bridge with isolated ports, and a tap per machine. nftables translates addresses and forwards
 * reserved ports, and dnsmasq provides DHCP and DNS. The network works in the agent's network namespace and needs the rights of root there.
 *
 * Files contain the wanted state, and the kernel has the actual state. {@link NatNetwork.check} compares both states, and repairs the state
 * in the kernel.
 */
import { access, constants, mkdir } from 'node:fs/promises';
import { isDeepStrictEqual } from 'node:util';
import type { Logger } from 'pino';
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import {
  type AttachOptions,
  type GuestNetwork,
  type NamespaceNetwork,
  type NamespaceOptions,
  type Network,
  type NetworkReport,
  normaliseMacAddress,
} from '../network.ts';
import { Serial } from '../../../base/concurrency.ts';
import { isUsable, type PortChecks, PortWatch, requireUsable } from '../hostports.ts';
import type { Attachment, NamespaceAttachment } from './attachments.ts';
import { deviceOf, forgetFormer, Members, TapWatch } from './members.ts';
import {
  chooseAddress,
  chooseNamespaceAddress,
  type NatLayout,
  layoutOf,
  namespaceDevice,
  namespacePath,
  type NatOptions,
  tapName,
} from './layout.ts';
import { Dnsmasq } from './dnsmasq.ts';
import { foreignTables, PublishedPorts } from './foreignrules.ts';
import { type MetadataPages, MetadataServer } from './metadata.ts';
import type { Links } from './devices.ts';
import { describeDifference, findOverlap, foreignDevices, requireOwnDevices } from './plan.ts';
import { detachFault, RefusedConnections, reportOn } from './report.ts';
import { type Convergence, NatState } from './state.ts';
import { findProgram } from '../../../base/exec.ts';

export class NatNetwork implements Network {
  readonly name = 'nat';
  readonly #layout: NatLayout;
  readonly #members: Members;
  readonly #state: NatState;
  readonly #options: NatOptions;
  readonly #logger: Logger;
  readonly #metadata: MetadataServer;
  readonly #taps = new TapWatch();
  /**
   * Network namespaces that a repair created again, each by the name of its device. A program that was already running stays in the former
   * namespace, and has no network there.
   */
  readonly #lostNamespaces = new Set<string>();
  readonly #ports: PortWatch;
  readonly #published: PublishedPorts;
  /** Reserved ports on which another process listens, or that are forbidden, each with a message. The key is the port's name. */
  #taken: ReadonlyMap<string, string> = new Map();
  readonly #refusals: RefusedConnections;
  /** Queue that runs one operation at a time, because two repairs at once would undo each other. */
  readonly #serial = new Serial();

  /** Prepares the network, but does not change the host. @throws ReasonedError `NetworkUnavailable` when a name or subnet is unusable. */
  constructor(options: NatOptions, pages: MetadataPages, logger: Logger) {
    this.#options = options;
    this.#logger = logger;
    this.#layout = layoutOf(options);
    this.#ports = new PortWatch(options.hostAddress, options.ports);
    this.#members = new Members(this.#layout, options.directory);
    const uidOf = (address: string) => this.#members.machines.find((one) => one.address === address)?.uid;
    this.#metadata = new MetadataServer({ pages, uidOf, logger });
    const { runtimeDirectory, dnsServers: servers, resolvConf } = options;
    const dnsmasq = new Dnsmasq(this.#layout, runtimeDirectory, { servers, resolvConf });
    this.#state = new NatState(this.#layout, dnsmasq, this.#metadata);
    this.#refusals = new RefusedConnections(this.#state.tables);
    this.#published = new PublishedPorts(this.#layout, this.#state.tables);
  }

  setUp(): Promise<void> {
    return this.#serial.run(async () => {
      await requireHost();
      await mkdir(this.#options.directory, { recursive: true });
      await this.#members.load();
      const observed = await this.#state.observe(this.#members.wanted);
      const overlap = findOverlap(this.#layout, observed.links);
      if (overlap !== undefined) {
        throw new ReasonedError('NetworkUnavailable', overlap);
      }
      requireOwnDevices(this.#layout, observed.links);
      await this.#members.save();
      await this.#state.begin();
      await this.#converge();
      const { bridge, subnet } = this.#options;
      this.#logger.info({ bridge, subnet, machines: this.#members.size }, 'The nat network is set up');
    });
  }

  attach(uid: string, options: AttachOptions): Promise<GuestNetwork> {
    return this.#serial.run(async () => {
      const macAddress = normaliseMacAddress(options.macAddress);
      if (!options.running) {
        await requireUsable(uid, options.ports, this.#portChecks());
      }
      const attachment: Attachment = {
        uid,
        macAddress,
        address: this.#members.addressOf(uid) ?? chooseAddress(this.#layout, uid, this.#members.addresses()),
        tap: tapName(this.#layout, uid),
        ports: options.ports,
        ...(options.runAs ? { owner: options.runAs } : {}),
      };
      this.#members.put(attachment, options);
      await this.#members.save();
      const links = await this.#convergeWith(attachment.tap);
      if (options.running) {
        this.#taps.adopt(attachment.tap, links);
      } else {
        this.#taps.forget(attachment.tap);
      }
      await this.#members.forgetFormer(attachment);
      return { kind: 'tap', macAddress, address: attachment.address, device: attachment.tap };
    });
  }

  attachNamespace(uid: string, options: NamespaceOptions): Promise<NamespaceNetwork> {
    return this.#serial.run(async () => {
      const { exposedPort, peer, ports, running } = options;
      if (!running) {
        await requireUsable(uid, ports, this.#portChecks());
      }
      const taken = this.#members.addresses();
      const attachment: NamespaceAttachment = {
        uid,
        address: this.#members.addressOf(uid) ?? chooseNamespaceAddress(this.#layout, uid, taken),
        device: namespaceDevice(this.#layout, uid),
        exposedPort,
        ...(peer === undefined ? {} : { peer }),
        ports,
      };
      const { device, address } = attachment;
      this.#members.put(attachment, options);
      await this.#members.save();
      await this.#convergeWith(device);
      if (!running) {
        this.#lostNamespaces.delete(device);
      }
      await this.#members.forgetFormer(attachment);
      const path = namespacePath(this.#layout, device);
      return { kind: 'namespace', path, address, dnsServer: this.#layout.gateway };
    });
  }

  isUsable(uid: string, port: MachinePort): Promise<boolean> {
    return isUsable(uid, port, this.#portChecks());
  }

  detach(uid: string): Promise<void> {
    return this.#serial.run(async () => {
      // The attachment is removed from memory and file last. If a step fails, the next call does all steps again. If the agent dies before
      // the end, the file still contains the attachment, and the restarted agent detaches the machine again.
      const attachment = this.#members.leave(uid);
      if (!attachment) {
        return;
      }
      this.#taps.forget(deviceOf(attachment));
      this.#metadata.forget(uid);
      await this.#convergeWithout(deviceOf(attachment));
      await forgetFormer(attachment, this.#options.hostAddress);
      await this.#members.remove(uid);
    });
  }

  async address(uid: string): Promise<string | undefined> {
    return this.#members.find(uid)?.address;
  }

  async attached(): Promise<string[]> {
    return this.#members.all.map(({ uid }) => uid);
  }

  check(): Promise<NetworkReport> {
    return this.#serial.run(async () => await this.#check());
  }

  async #check(): Promise<NetworkReport> {
    this.#taken = await this.#ports.look(this.#members.ports);
    const { done, observed, ...failures } = await this.#repair();
    const repaired = done.map((repair) => describeDifference(this.#layout, repair));
    const report = reportOn(this.#layout, this.#members.wanted, {
      ...failures,
      foreignDevices: foreignDevices(this.#layout, observed.links),
      ...observed,
      lostPaths: await this.#state.lostPaths(),
      foreign: foreignTables(observed.ruleset, this.#state.tables),
      lostTaps: this.#taps.lost,
      lostNamespaces: this.#lostNamespaces,
      withheldPorts: this.#withheld(),
    });
    const devices = new Map(this.#members.all.map((one) => [one.uid, deviceOf(one)]));
    return { ...report, repaired, refusedConnections: this.#refusals.count(observed.ruleset, devices) };
  }

  close(): Promise<void> {
    return this.#serial.run(async () => {
      if (!this.#members.isLoaded || this.#members.size > 0) {
        await this.#state.close();
        return;
      }
      // Perhaps no agent will run on this host again, so the network is removed now. IPv4 forwarding stays on, because perhaps other
      // programs need it.
      await this.#state.remove();
      await this.#members.removeFiles();
    });
  }

  /** Returns the reserved ports that are not forwarded now, each with the reason. The key is the port's name. */
  #withheld(): ReadonlyMap<string, string> {
    return new Map([...this.#published.faults(this.#members.ports), ...this.#taken]);
  }

  /** Repairs the state. If rules of other programs have begun or ceased to lead reserved ports elsewhere, repairs it again. */
  async #convergeState(): Promise<Convergence> {
    const before = this.#withheld();
    const convergence = await this.#state.converge(this.#members.without(before));
    this.#published.notice(convergence.observed);
    const after = this.#withheld();
    if (isDeepStrictEqual(after, before)) {
      return convergence;
    }
    const again = await this.#state.converge(this.#members.without(after));
    return { ...again, done: [...convergence.done, ...again.done] };
  }

  async #repair(): Promise<Convergence> {
    const convergence = await this.#convergeState();
    const taps = this.#members.machines.map(({ tap }) => tap);
    this.#taps.notice(taps, convergence.done, convergence.observed.links);
    for (const repair of convergence.done) {
      if (repair.kind === 'createNamespace') {
        this.#lostNamespaces.add(repair.device);
      } else if (repair.kind === 'removeNamespace') {
        this.#lostNamespaces.delete(repair.device);
      }
    }
    return convergence;
  }

  /**
   * Repairs the whole network.
   *
   * @throws ReasonedError `NetworkUnavailable` when a repair fails. A failed repair of a network namespace is ignored, unless `device` is
   * the name of the namespace's device.
   */
  async #converge(device?: string): Promise<Convergence['observed']> {
    const { failedRepair, failedNamespaces, observed } = await this.#repair();
    const failure = failedRepair ?? failedNamespaces.get(device ?? '');
    if (failure !== undefined) {
      throw new ReasonedError('NetworkUnavailable', failure);
    }
    return observed;
  }

  async #convergeWith(device: string): Promise<Links> {
    const { links } = await this.#converge(device);
    requireOwnDevices(this.#layout, links, device);
    return links;
  }

  /**
   * Repairs the whole network after a member has left. A failed repair that does not concern the member is left to {@link check}.
   *
   * @throws ReasonedError `NetworkUnavailable` when a repair fails and the member's device or rules might remain.
   */
  async #convergeWithout(device: string): Promise<void> {
    const convergence = await this.#repair();
    const observed =
      convergence.failedRepair === undefined
        ? convergence.observed
        : await this.#state.observe(this.#members.without(this.#withheld()));
    const fault = detachFault(this.#layout, device, convergence, observed);
    if (fault !== undefined) {
      throw new ReasonedError('NetworkUnavailable', fault);
    }
  }

  #portChecks(): PortChecks {
    const reserved = this.#members.holders.map((one) => [one.uid, one.ports] as const);
    const address = this.#options.hostAddress ?? '0.0.0.0';
    const whyPublished = (port: MachinePort) => this.#published.faultOf(port);
    return { rules: this.#options.ports, address, reserved, whyPublished };
  }
}

/** Required programs, with their Debian packages. */
const PROGRAMS: Record<string, string> = {
  ip: 'iproute2',
  nft: 'nftables',
  conntrack: 'conntrack',
  dnsmasq: 'dnsmasq-base',
  unshare: 'util-linux',
  nsenter: 'util-linux',
  umount: 'mount',
};

const TUN_DEVICE = '/dev/net/tun';

async function isThere(path: string, mode: number): Promise<boolean> {
  return await access(path, mode).then(
    () => true,
    () => false,
  );
}

/** Returns what the driver needs and this host lacks, in words. */
export async function missingForNat(): Promise<string[]> {
  const missing: string[] = [];
  if (process.geteuid?.() !== 0) {
    missing.push('the rights of root');
  }
  for (const [program, packageName] of Object.entries(PROGRAMS)) {
    if ((await findProgram(program)) === undefined) {
      missing.push(`${program} (package ${packageName})`);
    }
  }
  if (!(await isThere(TUN_DEVICE, constants.R_OK + constants.W_OK))) {
    missing.push(`the device ${TUN_DEVICE}`);
  }
  return missing;
}

/** Checks all requirements on the host. @throws ReasonedError `NetworkUnavailable` with all missing requirements when some are missing. */
async function requireHost(): Promise<void> {
  const missing = await missingForNat();
  if (missing.length > 0) {
    throw new ReasonedError(
      'NetworkUnavailable',
      `The network driver nat needs ${missing.join(', ')} on this host`,
    );
  }
}
