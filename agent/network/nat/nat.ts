/**
 * Implements the `nat` network on Linux: a bridge with isolated ports, and a tap per machine. nftables translates addresses and forwards
 * reserved ports, and dnsmasq provides DHCP and DNS. The network works in the agent's network namespace and needs the rights of root there.
 *
 * One file contains the wanted state, and the kernel has the actual state. {@link NatNetwork.check} compares them and repairs the kernel's.
 */
import { mkdir } from 'node:fs/promises';
import type { Logger } from 'pino';
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { portName } from '../../../api/v1alpha1/ports.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import {
  type AttachOptions,
  type GuestNetwork,
  type NamespaceNetwork,
  type Network,
  type NetworkReport,
  normaliseMacAddress,
} from '../network.ts';
import { Serial } from '../../../base/serial.ts';
import { isUsable, type PortChecks, PortWatch, requireUsable } from '../hostports.ts';
import { type Attachment, AttachmentFile } from './attachments.ts';
import { forgetConnections } from '../commands.ts';
import { contains } from './ipv4.ts';
import { chooseAddress, type Layout, layoutOf, type NatOptions, tapName } from './layout.ts';
import { Dnsmasq } from './dnsmasq.ts';
import { foreignTables } from './foreignrules.ts';
import { type MetadataPages, MetadataServer } from './metadata.ts';
import type { Links } from './observe.ts';
import { countedPackets, type RulesetEntry } from '../nftables.ts';
import { describeDifference, findOverlap, foreignDevices, sharedDevices } from './plan.ts';
import { requireHost } from './requirements.ts';
import { reportOn } from './report.ts';
import { refusalCounter } from './ruleset.ts';
import { type Convergence, NatState } from './state.ts';
import { TapWatch } from './taps.ts';

export type { NatOptions } from './layout.ts';

export class NatNetwork implements Network {
  readonly name = 'nat';
  readonly #layout: Layout;
  readonly #file: AttachmentFile;
  readonly #state: NatState;
  readonly #options: NatOptions;
  readonly #logger: Logger;
  readonly #attachments = new Map<string, Attachment>();
  readonly #metadata: MetadataServer;
  #isLoaded = false;
  /** Machines whose addresses may still have tracked connections of earlier owners, because an attach failed. */
  readonly #unforgotten = new Set<string>();
  readonly #taps = new TapWatch();
  readonly #ports: PortWatch;
  /** Reasons why reserved ports are not forwarded for now, by the port's name. For example, another process listens on the port. */
  #withheld: ReadonlyMap<string, string> = new Map();
  /** Numbers of refused packets at the last check, by the name of the nftables counter. */
  #refused: ReadonlyMap<string, number> = new Map();
  /** Queue that runs one operation at a time, because two repairs at once would undo each other. */
  readonly #serial = new Serial();

  /** Prepares the network without a change on the host. @throws ReasonedError `NetworkUnavailable` when a name or subnet is unusable. */
  constructor(options: NatOptions, pages: MetadataPages, logger: Logger) {
    this.#options = options;
    this.#logger = logger;
    this.#layout = layoutOf(options);
    this.#ports = new PortWatch(options.hostAddress, options.ports);
    this.#file = new AttachmentFile(options.directory);
    const uidOf = (address: string) => this.#all().find((one) => one.address === address)?.uid;
    this.#metadata = new MetadataServer({ pages, uidOf, logger });
    const dnsmasq = new Dnsmasq(this.#layout, options.runtimeDirectory, options.dnsServers);
    this.#state = new NatState(this.#layout, dnsmasq, this.#metadata);
  }

  setUp(): Promise<void> {
    return this.#serial.run(async () => {
      await requireHost();
      await mkdir(this.#options.directory, { recursive: true });
      await this.#load();
      const observed = await this.#state.observe(this.#all());
      const outside = this.#all().find((one) => !contains(this.#layout.subnet, one.address));
      if (outside) {
        const message = `Machine ${outside.uid} has the address ${outside.address}, which is not in network.subnet`;
        throw new ReasonedError('NetworkUnavailable', `${message} (${this.#options.subnet})`);
      }
      const overlap = findOverlap(this.#layout, observed.links);
      if (overlap !== undefined) {
        throw new ReasonedError('NetworkUnavailable', overlap);
      }
      this.#requireOwn(sharedDevices(this.#layout), observed.links);
      await this.#save();
      await this.#state.begin();
      await this.#converge();
      const { bridge, subnet } = this.#options;
      this.#logger.info({ bridge, subnet, machines: this.#attachments.size }, 'The nat network is set up');
    });
  }

  attach(uid: string, options: AttachOptions): Promise<GuestNetwork> {
    return this.#serial.run(async () => {
      const macAddress = normaliseMacAddress(options.macAddress);
      if (!options.running) {
        await requireUsable(uid, options.ports, this.#portChecks());
      }
      const known = this.#attachments.get(uid);
      const attachment: Attachment = {
        uid,
        macAddress,
        address: known?.address ?? chooseAddress(this.#layout, uid, this.#addresses()),
        tap: tapName(this.#layout, uid),
        ports: options.ports,
        ...(options.runAs ? { owner: options.runAs } : {}),
      };
      if (JSON.stringify(known) !== JSON.stringify(attachment)) {
        this.#unforgotten.add(uid);
      }
      this.#attachments.set(uid, attachment);
      await this.#save();
      const { links } = await this.#converge();
      this.#requireOwn([...sharedDevices(this.#layout), attachment.tap], links);
      if (!options.running) {
        this.#taps.forget(attachment.tap);
      }
      if (this.#unforgotten.has(uid)) {
        await this.#forget(attachment);
        this.#unforgotten.delete(uid);
      }
      const { tap: device, address } = attachment;
      return { kind: 'tap', macAddress, address, device };
    });
  }

  async attachNamespace(): Promise<NamespaceNetwork> {
    throw new ReasonedError('NetworkUnavailable', 'This release has no namespaces for emulators yet');
  }

  isUsable(uid: string, port: MachinePort): Promise<boolean> {
    return isUsable(uid, port, this.#portChecks());
  }

  detach(uid: string): Promise<void> {
    return this.#serial.run(async () => {
      const attachment = this.#attachments.get(uid);
      if (!attachment) {
        return;
      }
      // The file is saved last. If the agent dies before, the next agent finds the attachment and detaches it again.
      this.#attachments.delete(uid);
      this.#unforgotten.delete(uid);
      this.#taps.forget(attachment.tap);
      this.#metadata.forget(uid);
      await this.#converge();
      await this.#forget(attachment);
      await this.#save();
    });
  }

  async address(uid: string): Promise<string | undefined> {
    return this.#attachments.get(uid)?.address;
  }

  async attached(): Promise<string[]> {
    return [...this.#attachments.keys()];
  }

  check(): Promise<NetworkReport> {
    return this.#serial.run(async () => await this.#check());
  }

  async #check(): Promise<NetworkReport> {
    const attachments = this.#all();
    this.#withheld = await this.#ports.look(attachments.flatMap(({ ports }) => ports));
    const { done, failed, observed } = await this.#repair();
    const repaired = done.map((repair) => describeDifference(this.#layout, repair));
    const report = reportOn(this.#layout, attachments, {
      failedRepair: failed,
      foreignDevices: foreignDevices(this.#layout, observed.links),
      lostPaths: await this.#state.lostPaths(),
      foreign: foreignTables(observed.ruleset, this.#state.tables),
      lostTaps: this.#taps.lost,
      withheldPorts: this.#withheld,
    });
    return { ...report, repaired, refusedConnections: this.#countRefused(observed.ruleset) };
  }

  close(): Promise<void> {
    return this.#serial.run(async () => {
      if (!this.#isLoaded || this.#attachments.size > 0) {
        await this.#state.close();
        return;
      }
      // This may be the host's last agent, so the network is removed now. Forwarding stays on because other programs may need it.
      await this.#state.remove();
      await this.#file.remove();
    });
  }

  async #repair(): Promise<Convergence> {
    const convergence = await this.#state.converge(this.#reachable());
    const taps = this.#all().map(({ tap }) => tap);
    this.#taps.notice(taps, convergence.done, convergence.observed.links);
    return convergence;
  }

  async #converge(): Promise<Convergence['observed']> {
    const { failed, observed } = await this.#repair();
    if (failed !== undefined) {
      throw new ReasonedError('NetworkUnavailable', failed);
    }
    return observed;
  }

  #requireOwn(devices: readonly string[], links: Links): void {
    const foreign = foreignDevices(this.#layout, links);
    const faults = devices.flatMap((device) => foreign.get(device) ?? []);
    if (faults.length > 0) {
      throw new ReasonedError('NetworkUnavailable', faults.join('; '));
    }
  }

  /** Returns the numbers of refused packets since the last check, by machine uid. A reload of the rules sets all counters to 0. */
  #countRefused(ruleset: readonly RulesetEntry[]): Record<string, number> {
    const before = this.#refused;
    this.#refused = countedPackets(ruleset, `inet ${this.#layout.table}`);
    const refused: Record<string, number> = {};
    for (const { uid, tap } of this.#all()) {
      const name = refusalCounter(tap);
      const [then, now] = [before.get(name) ?? 0, this.#refused.get(name) ?? 0];
      const since = now < then ? now : now - then;
      if (since > 0) {
        refused[uid] = since;
      }
    }
    return refused;
  }

  async #load(): Promise<void> {
    const saved = await this.#file.load();
    for (const attachment of saved ?? []) {
      this.#attachments.set(attachment.uid, attachment);
    }
    this.#isLoaded = true;
  }

  async #save(): Promise<void> {
    if (!this.#isLoaded) {
      throw new ReasonedError('NetworkUnavailable', 'The nat network is not set up yet');
    }
    await this.#file.save(this.#all());
  }

  #all(): Attachment[] {
    return [...this.#attachments.values()];
  }

  /** Returns all attachments, but without the reserved ports that are not forwarded for now. */
  #reachable(): Attachment[] {
    const leads = (port: MachinePort): boolean => !this.#withheld.has(portName(port));
    return this.#all().map((one) => ({ ...one, ports: one.ports.filter(leads) }));
  }

  #addresses(): Set<string> {
    return new Set(this.#all().map((one) => one.address));
  }

  #portChecks(): PortChecks {
    const reserved = this.#all().map((one) => [one.uid, one.ports] as const);
    return { rules: this.#options.ports, address: this.#options.hostAddress ?? '0.0.0.0', reserved };
  }

  /**
   * Deletes the kernel's tracked connections of machines that had the address before. Also deletes tracked UDP connections to the reserved
   * ports. Such a connection may be older than the rule of its port, and the rule would not apply while the sender continues.
   */
  async #forget({ address, ports }: Attachment): Promise<void> {
    const onHost = this.#options.hostAddress === undefined ? [] : ['--orig-dst', this.#options.hostAddress];
    const udp = ports.filter((port) => port.protocol === 'UDP');
    // The deletions run one after another, because two deletions of the same entry at the same time both fail.
    for (const flag of ['--orig-src', '--orig-dst', '--reply-src']) {
      await forgetConnections([flag, address]);
    }
    for (const port of udp) {
      await forgetConnections(['--proto', 'udp', '--orig-port-dst', String(port.hostPort), ...onHost]);
    }
  }
}
