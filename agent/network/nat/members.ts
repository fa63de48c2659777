/**
 * Remembers, in memory and in files, which machines and programs are attached to the NAT network. Also remembers, only in memory, which
 * taps were deleted while a hypervisor had them open.
 */
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { portName } from '../../../api/v1alpha1/ports.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import {
  type Attachment,
  AttachmentFiles,
  type NamespaceAttachment,
  type WantedAttachments,
} from './attachments.ts';
import type { AttachOptions } from '../network.ts';
import { contains, formatSubnet } from './ipv4.ts';
import type { NatLayout } from './layout.ts';
import type { Links } from './devices.ts';
import type { Repair } from './plan.ts';
import { forgetConnections } from '../commands.ts';

export type Member = Attachment | NamespaceAttachment;

/** Returns the name of the member's device on this host. */
export function deviceOf(member: Member): string {
  return 'tap' in member ? member.tap : member.device;
}

export class Members {
  readonly #layout: NatLayout;
  readonly #files: AttachmentFiles;
  readonly #machines = new Map<string, Attachment>();
  readonly #namespaces = new Map<string, NamespaceAttachment>();
  /** Members that are being detached. Their devices and rules are not wanted any more, but they keep their addresses and ports. */
  readonly #leaving = new Map<string, Member>();
  /**
   * Uids of members whose address other machines might have had before. For these members, {@link forgetFormer} must still delete the
   * tracked connections of those machines. A member is added here when it is new or changed. Members that {@link load} reads are added too,
   * because the earlier run of the agent perhaps ended while it attached them.
   */
  readonly #unforgotten = new Set<string>();
  #isLoaded = false;

  constructor(layout: NatLayout, directory: string) {
    this.#layout = layout;
    this.#files = new AttachmentFiles(directory);
  }

  get isLoaded(): boolean {
    return this.#isLoaded;
  }

  /** Number of attached members and of members that are being detached. */
  get size(): number {
    return this.holders.length;
  }

  get machines(): Attachment[] {
    return [...this.#machines.values()];
  }

  get wanted(): WantedAttachments {
    return { machines: this.machines, namespaces: [...this.#namespaces.values()] };
  }

  get all(): Member[] {
    return [...this.#machines.values(), ...this.#namespaces.values()];
  }

  /** Reserved ports of {@link all} members. */
  get ports(): MachinePort[] {
    return this.all.flatMap((one) => one.ports);
  }

  /** All members that have an address and ports: {@link all}, and the members that are being detached. */
  get holders(): Member[] {
    return [...this.all, ...this.#leaving.values()];
  }

  /**
   * Reads the members from their files.
   *
   * @throws ReasonedError `NetworkUnavailable` when the address of a member is no longer in the configured subnets; Error when a file is
   * invalid.
   */
  async load(): Promise<void> {
    const { machines, namespaces } = await this.#files.load();
    for (const attachment of machines) {
      this.#machines.set(attachment.uid, attachment);
    }
    for (const attachment of namespaces) {
      this.#namespaces.set(attachment.uid, attachment);
    }
    for (const { uid } of this.all) {
      this.#unforgotten.add(uid);
    }
    this.#isLoaded = true;
    this.#requireInSubnets();
  }

  #requireInSubnets(): void {
    const { subnet, probe } = this.#layout;
    const each = [
      { members: this.#machines, within: subnet, setting: 'subnet' },
      { members: this.#namespaces, within: probe.outerSubnet, setting: 'probeSubnet' },
    ];
    for (const { members, within, setting } of each) {
      const outside = [...members.values()].find((one) => !contains(within, one.address));
      if (outside) {
        const message = `Machine ${outside.uid} has the address ${outside.address}, which is not in network.${setting}`;
        throw new ReasonedError('NetworkUnavailable', `${message} (${formatSubnet(within)})`);
      }
    }
  }

  /**
   * Writes the members to their files. Call {@link load} first, because this function overwrites the members in the files with the members
   * in memory.
   *
   * @throws ReasonedError `NetworkUnavailable` when {@link load} was not called.
   */
  async save(): Promise<void> {
    await this.#write(this.holders);
  }

  async #write(members: readonly Member[]): Promise<void> {
    if (!this.#isLoaded) {
      throw new ReasonedError('NetworkUnavailable', 'The nat network is not set up yet');
    }
    await this.#files.save({
      machines: members.filter((one) => 'tap' in one),
      namespaces: members.filter((one) => 'device' in one),
    });
  }

  async removeFiles(): Promise<void> {
    await this.#files.remove();
  }

  find(uid: string): Member | undefined {
    return this.#machines.get(uid) ?? this.#namespaces.get(uid);
  }

  /** Returns the member's address; undefined if it has none. A member that is being detached still has its address. */
  addressOf(uid: string): string | undefined {
    return (this.find(uid) ?? this.#leaving.get(uid))?.address;
  }

  /**
   * Adds or replaces a member. `running` is true if the member already runs. If a running member is unchanged, {@link forgetFormer} has
   * nothing to do, because the member was attached completely before its start.
   */
  put(member: Member, { running }: Pick<AttachOptions, 'running'>): void {
    if (JSON.stringify(this.find(member.uid)) !== JSON.stringify(member)) {
      this.#unforgotten.add(member.uid);
    } else if (running) {
      this.#unforgotten.delete(member.uid);
    }
    this.#leaving.delete(member.uid);
    if ('tap' in member) {
      this.#machines.set(member.uid, member);
    } else {
      this.#namespaces.set(member.uid, member);
    }
  }

  /**
   * Begins to detach a member, and returns the member. Later calls also return the member until {@link remove} has succeeded, so that the
   * caller can repeat a failed detachment. Returns undefined if there is no such member.
   */
  leave(uid: string): Member | undefined {
    const member = this.find(uid) ?? this.#leaving.get(uid);
    if (member !== undefined) {
      this.#machines.delete(uid);
      this.#namespaces.delete(uid);
      this.#unforgotten.delete(uid);
      this.#leaving.set(uid, member);
    }
    return member;
  }

  /** Completes the detachment: removes the member from the files, then from memory. @throws Error when the files cannot be written. */
  async remove(uid: string): Promise<void> {
    await this.#write(this.holders.filter((one) => one.uid !== uid));
    this.#leaving.delete(uid);
  }

  /**
   * Deletes the kernel's tracked connections of machines that had the member's address before. If these connections were already deleted
   * and the member has not changed since then, the function does nothing.
   */
  async forgetFormer(member: Member): Promise<void> {
    if (this.#unforgotten.has(member.uid)) {
      await forgetFormer(member, this.#layout.hostAddress);
      this.#unforgotten.delete(member.uid);
    }
  }

  addresses(): Set<string> {
    return new Set(this.holders.map(({ address }) => address));
  }

  /** Returns all members. Reserved ports whose names are keys in `withheld` are left out. */
  without(withheld: ReadonlyMap<string, string>): WantedAttachments {
    const leads = (port: MachinePort): boolean => !withheld.has(portName(port));
    const { machines, namespaces } = this.wanted;
    return {
      machines: machines.map((one) => ({ ...one, ports: one.ports.filter(leads) })),
      namespaces: namespaces.map((one) => ({ ...one, ports: one.ports.filter(leads) })),
    };
  }
}

/** Remembers two kinds of taps: taps that a hypervisor has open now, and taps that were deleted while a hypervisor had them open. */
export class TapWatch {
  readonly #lost = new Set<string>();
  #held: ReadonlySet<string> = new Set();

  /** Taps that were deleted while a hypervisor had them open. Such a hypervisor has no network until its next start. */
  get lost(): ReadonlySet<string> {
    return this.#lost;
  }

  /**
   * Updates the lists after repairs. `taps` are the taps of all machines. `done` are the successful repairs. `links` are the devices that
   * exist after the repairs.
   */
  notice(taps: readonly string[], done: readonly Repair[], links: Links): void {
    const created = new Set(done.flatMap((repair) => (repair.kind === 'createTap' ? [repair.device] : [])));
    const held = new Set<string>();
    for (const tap of taps) {
      const link = links.get(tap);
      if (link?.kind === 'tun' && link.carrier) {
        held.add(tap);
        this.#lost.delete(tap);
      } else if (this.#held.has(tap) && (link?.kind !== 'tun' || created.has(tap))) {
        this.#lost.add(tap);
      }
    }
    this.#held = held;
  }

  /**
   * Takes over the tap of a hypervisor that ran before the agent started. A running hypervisor has its tap open. So a tap without a carrier
   * was deleted under the hypervisor and created again.
   */
  adopt(tap: string, links: Links): void {
    if (links.get(tap)?.carrier === false) {
      this.#lost.add(tap);
    }
  }

  /** Removes a tap from {@link lost}, because no hypervisor has the tap open any more. */
  forget(tap: string): void {
    this.#lost.delete(tap);
  }
}

interface Owner {
  address: string;
  ports: readonly MachinePort[];
}

/**
 * Deletes the kernel's tracked connections from and to `address`. They can belong to a machine that had this address before. Also deletes
 * the tracked UDP connections to the reserved host ports in `ports`. Otherwise the kernel would apply earlier rules to such a UDP
 * connection as long as its sender continues to send.
 *
 * @param hostAddress address at which reserved ports are reached; undefined means every address.
 */
export async function forgetFormer(
  { address, ports }: Owner,
  hostAddress: string | undefined,
): Promise<void> {
  const onHost = hostAddress === undefined ? [] : ['--orig-dst', hostAddress];
  // The filter --orig-src finds connections from the machine. The filter --reply-src finds connections to the machine, because the replies
  // come from the machine's address, even through a forwarded port. No connection matches both filters, so the two deletions can run at the
  // same time.
  await Promise.all(['--orig-src', '--reply-src'].map((flag) => forgetConnections([flag, address])));
  for (const port of ports.filter(({ protocol }) => protocol === 'UDP')) {
    await forgetConnections(['--proto', 'udp', '--orig-port-dst', String(port.hostPort), ...onHost]);
  }
}
