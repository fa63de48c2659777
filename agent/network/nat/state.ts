/** Brings the NAT network of the host to the wanted state: observes, plans, repairs, and observes again. */
import { writeFile } from 'node:fs/promises';
import { isMissing, messageOf, undefinedIf } from '../../../base/errors.ts';
import type { Attachment } from './attachments.ts';
import { ip, run } from '../commands.ts';
import type { Dnsmasq } from './dnsmasq.ts';
import { type Layout, METADATA } from './layout.ts';
import type { MetadataServer } from './metadata.ts';
import { FORWARDING_SWITCH, readForwarding, readLinks } from './observe.ts';
import { fingerprint, readRuleset, type RulesetEntry } from '../nftables.ts';
import {
  describeDifference,
  ipCommands,
  type Observed,
  ownDevices,
  planRepairs,
  type Repair,
} from './plan.ts';
import { Probe, type ProbePath } from './probe.ts';
import { describeFailures } from './report.ts';
import { removalScript, rulesetScript } from './ruleset.ts';

/** Limit of rounds of repairs. A repair can make another one necessary, for example to connect a new probe. More rounds do not help. */
const MAXIMUM_ROUNDS = 3;

export interface Convergence {
  done: Repair[];
  /** Reason why some repairs failed; undefined if all succeeded. */
  failed: string | undefined;
  observed: Observed & { ruleset: RulesetEntry[] };
}

export class NatState {
  /** Names of Berth's tables in nft, for example `inet berth`. */
  readonly tables: readonly string[];
  readonly #layout: Layout;
  readonly #dnsmasq: Dnsmasq;
  readonly #probe: Probe;
  readonly #metadata: MetadataServer;
  /**
   * nftables script that was loaded last, with the fingerprint of the rules as read back from the kernel. Versions of nft print rules
   * differently, so the script cannot be compared with the kernel's rules.
   */
  #loaded: { script: string; fingerprint: string } | undefined;

  constructor(layout: Layout, dnsmasq: Dnsmasq, metadata: MetadataServer) {
    this.#layout = layout;
    this.#dnsmasq = dnsmasq;
    this.#metadata = metadata;
    this.#probe = new Probe(layout);
    this.tables = [`inet ${layout.table}`, `bridge ${layout.table}`];
  }

  async observe(attachments: readonly Attachment[]): Promise<Convergence['observed']> {
    const [links, forwarding, ruleset, pid, dnsmasqKnows] = await Promise.all([
      readLinks(),
      readForwarding(),
      readRuleset(),
      this.#dnsmasq.pid(),
      this.#dnsmasq.knows(attachments),
    ]);
    const metadataListens = this.#metadata.listens;
    const isLoaded = this.#loaded?.script === rulesetScript(this.#layout, attachments, metadataListens);
    const rulesCurrent = isLoaded && this.#loaded?.fingerprint === fingerprint(ruleset, this.tables);
    const dnsmasqRuns = pid !== undefined;
    return {
      links,
      forwarding,
      rulesCurrent,
      dnsmasqRuns,
      dnsmasqKnows,
      metadataListens,
      probeEnds: this.#probe.open,
      ruleset,
    };
  }

  /** Repairs all differences between actual and wanted state. A failed repair does not throw and does not prevent the other repairs. */
  async converge(attachments: readonly Attachment[]): Promise<Convergence> {
    const done: Repair[] = [];
    for (let round = 0; ; round++) {
      const observed = await this.observe(attachments);
      const repairs = planRepairs(this.#layout, attachments, observed);
      if (repairs.length === 0) {
        return { done, failed: undefined, observed };
      }
      const failures: string[] = [];
      for (const repair of repairs) {
        const difference = describeDifference(this.#layout, repair);
        if (round === MAXIMUM_ROUNDS) {
          failures.push(`${difference}, and the repair does not last`);
          continue;
        }
        try {
          await this.#perform(repair, attachments, observed);
          done.push(repair);
        } catch (error) {
          failures.push(`${difference}, and the repair failed: ${messageOf(error)}`);
        }
      }
      if (failures.length > 0) {
        return { done, failed: describeFailures(failures), observed };
      }
    }
  }

  /** Resolves with the paths on which the probe's packets are lost. */
  async lostPaths(): Promise<ProbePath[]> {
    return await this.#probe.failures();
  }

  async close(): Promise<void> {
    this.#probe.close();
    await this.#metadata.close();
  }

  /** Prepares the host for this agent, whose dnsmasq may need other arguments than the dnsmasq of an earlier agent. */
  async begin(): Promise<void> {
    await this.#dnsmasq.stopFormer();
  }

  /** Removes Berth's nftables tables and network devices, and stops dnsmasq. Missing parts are no error. */
  async remove(): Promise<void> {
    await this.close();
    await this.#dnsmasq.stop();
    await run('nft', ['-f', '-'], `${removalScript(this.#layout)}\n`);
    this.#loaded = undefined;
    // The kernel may delete the probe's devices meanwhile, because the probe's sockets are closed. A missing device is no error.
    for (const device of ownDevices(this.#layout, await readLinks())) {
      await this.#deleteDevice(device);
    }
  }

  async #deleteDevice(device: string): Promise<void> {
    try {
      await ip([`link delete ${device}`]);
    } catch (error) {
      if ((await readLinks()).has(device)) {
        throw error;
      }
    }
  }

  async #perform(repair: Repair, attachments: readonly Attachment[], observed: Observed): Promise<void> {
    await ip(ipCommands(this.#layout, repair));
    switch (repair.kind) {
      case 'disableIPv6':
        return await disableIPv6(repair.device);
      case 'loadRules':
        return await this.#loadRules(attachments);
      case 'rebuildProbe':
        return await this.#probe.rebuild(new Set(observed.links.keys()));
      case 'enableForwarding':
        return await writeFile(FORWARDING_SWITCH, '1');
      case 'informDnsmasq':
        return await this.#dnsmasq.tell(attachments);
      case 'startDnsmasq':
        return await this.#dnsmasq.start();
      case 'openMetadata':
        await this.#metadata.open(this.#layout.gateway, METADATA.gatewayPort);
        return undefined;
      default:
        return undefined;
    }
  }

  async #loadRules(attachments: readonly Attachment[]): Promise<void> {
    const script = rulesetScript(this.#layout, attachments, this.#metadata.listens);
    await run('nft', ['-f', '-'], script);
    this.#loaded = { script, fingerprint: fingerprint(await readRuleset(), this.tables) };
  }
}

/** Switches IPv6 off for a device. A missing file means that the kernel has no IPv6. */
async function disableIPv6(device: string): Promise<void> {
  await undefinedIf(isMissing, writeFile(`/proc/sys/net/ipv6/conf/${device}/disable_ipv6`, '1'));
}
