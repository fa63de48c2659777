/** Brings the NAT network of the host to the wanted state: observes, plans, repairs, and observes again. */
import { writeFile } from 'node:fs/promises';
import { isDeepStrictEqual } from 'node:util';
import { messageOf } from '../../../base/errors.ts';
import type { WantedAttachments } from './attachments.ts';
import { ip, run } from '../commands.ts';
import {
  deleteDevice,
  disableIPv6,
  forwardingSwitch,
  readClosedUplinks,
  readForwarding,
  readLinks,
  readRoutes,
} from './devices.ts';
import type { Dnsmasq } from './dnsmasq.ts';
import { formatSubnet } from './ipv4.ts';
import { type NatLayout, METADATA, namespacesTable } from './layout.ts';
import type { MetadataServer } from './metadata.ts';
import { isOfNamespace, Namespaces } from './namespaces.ts';
import { fingerprint, namesIn, readRuleset, type RulesetEntry } from '../nftables.ts';
import { ipCommands, type ObservedNetwork, ownDevices, planRepairs, type Repair } from './plan.ts';
import { Probe, type ProbePath } from './probe.ts';
import { type FailedRepairs, NetworkFailures } from './report.ts';
import { changeScript, removalScript, rulesetScript, tablesOf } from './ruleset.ts';
import { removeTable } from './rulewords.ts';

/**
 * Largest number of times that one check repairs the network. One repair can make another repair necessary. For example, a new probe must
 * be connected to the bridge. If differences remain after this number of times, more repairs would not help.
 */
const MAXIMUM_ROUNDS = 3;

export interface Convergence extends FailedRepairs {
  done: Repair[];
  observed: ObservedNetwork & { ruleset: RulesetEntry[]; closedUplinks: readonly string[] };
}

interface Attempt {
  wanted: WantedAttachments;
  observed: Convergence['observed'];
  /** List to which each successful repair is added. */
  done: Repair[];
  /** Collection to which each failed repair is added. */
  failures: NetworkFailures;
}

export class NatState {
  /** Names of Berth's tables in nft, for example `inet berth`. */
  readonly tables: readonly string[];
  readonly #layout: NatLayout;
  readonly #dnsmasq: Dnsmasq;
  readonly #probe: Probe;
  readonly #metadata: MetadataServer;
  readonly #namespaces: Namespaces;
  /**
   * The nftables script that was loaded last, and the fingerprint of the rules that the kernel had afterwards. The agent cannot compare the
   * script itself with the kernel's rules, because versions of nft print rules differently.
   */
  #loaded: { script: string; fingerprint: string } | undefined;

  constructor(layout: NatLayout, dnsmasq: Dnsmasq, metadata: MetadataServer) {
    this.#layout = layout;
    this.#dnsmasq = dnsmasq;
    this.#metadata = metadata;
    this.#probe = new Probe(layout);
    this.#namespaces = new Namespaces(layout);
    this.tables = tablesOf(layout);
  }

  async observe(wanted: WantedAttachments): Promise<Convergence['observed']> {
    const [links, guestRoutes, all, ofBridge, closedUplinks, ruleset, pid, dnsmasqKnows, namespaces] =
      await Promise.all([
        readLinks(),
        readRoutes(formatSubnet(this.#layout.subnet)),
        readForwarding(),
        readForwarding(this.#layout.bridge),
        readClosedUplinks(),
        readRuleset(),
        this.#dnsmasq.pid(),
        this.#dnsmasq.knows(wanted.machines),
        this.#namespaces.observe(wanted.namespaces),
      ]);
    const metadataListens = this.#metadata.listens;
    const isLoaded = this.#loaded?.script === rulesetScript(this.#layout, wanted, metadataListens);
    const isUnchanged = isLoaded && this.#loaded?.fingerprint === fingerprint(ruleset, this.tables);
    const rulesCurrent = isUnchanged && formerTables(this.#layout, ruleset).length === 0;
    const dnsmasqRuns = pid !== undefined;
    return {
      links,
      guestRoutes,
      forwarding: all && ofBridge,
      closedUplinks,
      rulesCurrent,
      dnsmasqRuns,
      dnsmasqKnows,
      metadataListens,
      probeEnds: this.#probe.open,
      ruleset,
      namespaces,
    };
  }

  /** Repairs all differences between actual and wanted state. A failed repair does not throw and does not prevent the other repairs. */
  async converge(wanted: WantedAttachments): Promise<Convergence> {
    const done: Repair[] = [];
    const failures = new NetworkFailures(this.#layout);
    for (let round = 0; ; round++) {
      const observed = await this.observe(wanted);
      const planned = planRepairs(this.#layout, wanted, observed);
      const repairs = planned.filter((repair) => !failures.precludes(repair));
      for (const repair of repairs) {
        if (round === MAXIMUM_ROUNDS) {
          failures.add(repair, 'the repair is undone each time');
        } else if (!failures.precludes(repair)) {
          await this.#attempt(repair, { wanted, observed, done, failures });
        }
      }
      if (repairs.length === 0 || failures.areGeneral || round === MAXIMUM_ROUNDS) {
        const { failedRepair, failedNamespaces } = failures.described();
        const all = new Map([...observed.namespaces.unreadable, ...failedNamespaces]);
        return { done, failedRepair, failedNamespaces: all, observed };
      }
    }
  }

  async #attempt(repair: Repair, { wanted, observed, done, failures }: Attempt): Promise<void> {
    try {
      await this.#perform(repair, wanted, observed);
      done.push(repair);
    } catch (error) {
      failures.add(repair, `the repair failed: ${messageOf(error)}`);
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

  /** Takes over the dnsmasq of an earlier run of the agent, or stops it if it has other arguments than the agent needs now. */
  async begin(): Promise<void> {
    await this.#dnsmasq.takeOver();
  }

  /**
   * Removes Berth's nftables tables and network devices, and stops dnsmasq. The function also succeeds if some of these parts are missing.
   */
  async remove(): Promise<void> {
    await this.close();
    await this.#dnsmasq.stop();
    await run('nft', ['-f', '-'], `${removalScript(this.#layout)}\n`);
    this.#loaded = undefined;
    await this.#namespaces.remove();
    // The kernel can delete the probe's devices at any time, because the probe's sockets are closed. `deleteDevice` also succeeds if a
    // device is missing.
    for (const device of ownDevices(this.#layout, await readLinks())) {
      await deleteDevice(device);
    }
  }

  async #perform(
    repair: Repair,
    wanted: WantedAttachments,
    observed: Convergence['observed'],
  ): Promise<void> {
    await ip(ipCommands(this.#layout, repair));
    if (isOfNamespace(repair)) {
      return await this.#namespaces.perform(repair, wanted.namespaces, observed);
    }
    switch (repair.kind) {
      case 'disableIPv6':
        return await disableIPv6(repair.device);
      case 'loadRules':
        return await this.#loadRules(wanted, observed.ruleset);
      case 'rebuildProbe':
        return await this.#probe.rebuild(new Set(observed.links.keys()));
      case 'enableForwarding':
        for (const device of [undefined, this.#layout.bridge]) {
          await writeFile(forwardingSwitch(device), '1');
        }
        return undefined;
      case 'informDnsmasq':
        return await this.#dnsmasq.tell(wanted.machines);
      case 'startDnsmasq':
        return await this.#dnsmasq.start();
      case 'openMetadata':
        await this.#metadata.open(this.#layout.gateway, METADATA.gatewayPort);
        return undefined;
      default:
        return undefined;
    }
  }

  /**
   * Loads the rules. If no other program changed Berth's tables since the last load, the counts in these tables are kept. Otherwise, and
   * after a failed load, the tables are replaced. Tables that have a former name are removed in the same step.
   */
  async #loadRules(wanted: WantedAttachments, ruleset: readonly RulesetEntry[]): Promise<void> {
    const hasMetadata = this.#metadata.listens;
    const script = rulesetScript(this.#layout, wanted, hasMetadata);
    const isUnchanged = this.#loaded?.fingerprint === fingerprint(ruleset, this.tables);
    const removal = formerTables(this.#layout, ruleset).flatMap(removeTable);
    this.#loaded = undefined;
    const change = isUnchanged ? changeScript(this.#layout, wanted, hasMetadata, ruleset) : script;
    await run('nft', ['-f', '-'], [...removal, change].join('\n'));
    this.#loaded = { script, fingerprint: fingerprint(await readRuleset(), this.tables) };
  }
}

/**
 * Returns the names of the tables that an earlier agent loaded for this network, before the configured name of the table changed. The names
 * have the form of nft, for example `inet berth`. The caller removes these tables, because they drop the packets of all guests that were
 * started since. The function recognises a former table by its rule about the taps of this network. The names of these taps derive from the
 * bridge, so no other network has this rule.
 */
export function formerTables(layout: NatLayout, ruleset: readonly RulesetEntry[]): string[] {
  const match = { op: '==', left: { meta: { key: 'iifname' } }, right: `${layout.tapPrefix}*` };
  const aboutTaps = [{ match }, { jump: { target: 'from_guest' } }];
  const names = ruleset.flatMap(({ rule }) =>
    rule?.family === 'bridge' && isDeepStrictEqual(rule['expr'], aboutTaps) ? [rule.table ?? ''] : [],
  );
  const former = names.filter((name) => name !== layout.table);
  return former
    .flatMap((name) => [`inet ${name}`, `bridge ${name}`, `inet ${namespacesTable(name)}`])
    .filter((table) => namesIn(ruleset, table, 'table').length > 0);
}
