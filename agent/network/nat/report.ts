/** Derives the health of the network and of each machine's connection from the results of a check. All functions are pure. */
import { portName } from '../../../api/v1alpha1/ports.ts';
import type { NetworkReport } from '../network.ts';
import type { Attachment } from './attachments.ts';
import { chainsStopping, type ForeignTables, type Subject } from './foreignrules.ts';
import type { Layout } from './layout.ts';
import { sharedDevices } from './plan.ts';
import { PATHS, type ProbePath } from './probe.ts';

export interface Evidence {
  /** Reason why a repair failed. */
  failedRepair: string | undefined;
  /** Messages about devices of other programs that have the name of a Berth device. The key is that name. */
  foreignDevices: ReadonlyMap<string, string>;
  /** Paths through the network on which the probe's test packets were lost. */
  lostPaths: readonly ProbePath[];
  foreign: ForeignTables;
  /** Names of taps that were deleted and created again while a hypervisor had the old tap open. Its guest has no network. */
  lostTaps: ReadonlySet<string>;
  /** Reasons why reserved ports are not forwarded, by the port's name. */
  withheldPorts: ReadonlyMap<string, string>;
}

/** Number of failed repairs that a message names. One cause can fail a repair for each machine, and a message has limited room. */
const NAMED_FAILURES = 3;

/** Returns one message about failed repairs, with the first few and the number of the others. */
export function describeFailures(failures: readonly string[]): string {
  const others = failures.length - NAMED_FAILURES;
  const rest = others > 0 ? [`Further failed repairs: ${others}`] : [];
  return [...failures.slice(0, NAMED_FAILURES), ...rest].join('; ');
}

function explainLoss(path: ProbePath, culprits: readonly string[]): string {
  const lost = `Packets ${PATHS[path]} are lost`;
  return culprits.length === 0
    ? lost
    : `${lost}; other programs drop packets in ${culprits.join(' and in ')}`;
}

/**
 * Returns the network fault of one machine. If nftables chains of other programs stop the machine's packets, that is a fault. Chains
 * that also stop the probe's test packets are ignored here, because the loss of test packets is reported separately.
 */
function machineFault(
  one: Attachment,
  layout: Layout,
  evidence: Evidence,
  probed: Set<string>,
): string | undefined {
  const foreign = evidence.foreignDevices.get(one.tap);
  if (foreign !== undefined) {
    return foreign;
  }
  if (evidence.lostTaps.has(one.tap)) {
    return `The tap ${one.tap} of the running machine was deleted; restart the machine`;
  }
  const withheld = one.ports.map((port) => evidence.withheldPorts.get(portName(port)));
  const ports = withheld.filter((fault) => fault !== undefined).join('; ');
  if (ports !== '') {
    return `Reserved ports do not lead to the guest: ${ports}`;
  }
  const subject = { address: one.address, macAddress: one.macAddress, port: one.tap, bridge: layout.bridge };
  const culprits = chainsStopping(evidence.foreign, subject).filter((chain) => !probed.has(chain));
  return culprits.length === 0
    ? undefined
    : `Other programs drop packets of ${one.address} in ${culprits.join(' and in ')}`;
}

/** Returns the report of a check. The caller adds the fields `repaired` and `refusedConnections`. */
export function reportOn(
  layout: Layout,
  attachments: readonly Attachment[],
  evidence: Evidence,
): Omit<NetworkReport, 'repaired' | 'refusedConnections'> {
  const { innerAddress: address, innerMac: macAddress, innerPort: port } = layout.probe;
  const probe: Subject = { address, macAddress, port, bridge: layout.bridge };
  const culprits = chainsStopping(evidence.foreign, probe);
  const general = [
    ...sharedDevices(layout).flatMap((device) => evidence.foreignDevices.get(device) ?? []),
    ...(evidence.failedRepair === undefined ? [] : [evidence.failedRepair]),
    ...evidence.lostPaths.map((path) => explainLoss(path, culprits)),
  ];
  const probed = new Set(culprits);
  const machines: NetworkReport['machines'] = {};
  const single: string[] = [];
  for (const one of attachments) {
    const fault = machineFault(one, layout, evidence, probed);
    if (fault !== undefined) {
      single.push(`Machine ${one.uid}: ${fault}`);
    }
    const faults = [...general, ...(fault === undefined ? [] : [fault])];
    const message =
      faults.length === 0
        ? `The guest is connected as ${one.address}; test packets come through`
        : faults.join('; ');
    machines[one.uid] = { healthy: faults.length === 0, message };
  }
  return { healthy: general.length === 0, faults: [...general, ...single], machines };
}
