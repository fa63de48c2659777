/** What the evidence means, for the Node and for each machine. Pure. */
import { portName } from '../../../api/v1alpha1/ports.ts';
import type { NetworkReport } from '../network.ts';
import type { Attachment } from './attachments.ts';
import { chainsStopping, type ForeignTables, type Subject } from './foreignrules.ts';
import type { Layout } from './layout.ts';
import { PATHS, type ProbePath } from './probe.ts';

export interface Evidence {
  /** Why a repair could not be made. */
  failedRepair: string | undefined;
  /** Where the probe's packets did not come through. */
  lostPaths: readonly ProbePath[];
  foreign: ForeignTables;
  /** Taps made anew under a running hypervisor. */
  lostTaps: ReadonlySet<string>;
  /** Why reserved ports lead nowhere, by their names. */
  withheldPorts: ReadonlyMap<string, string>;
}

function explainLoss(path: ProbePath, culprits: readonly string[]): string {
  const lost = `packets are lost ${PATHS[path]}`;
  return culprits.length === 0 ? lost : `${lost}; dropped by ${culprits.join(' and ')}`;
}

/** A rule that also stops the probe is judged by whether the probe came through; one that does not is all there is to know. */
function machineFault(
  one: Attachment,
  layout: Layout,
  evidence: Evidence,
  probed: Set<string>,
): string | undefined {
  if (evidence.lostTaps.has(one.tap)) {
    return `its tap ${one.tap} was deleted under it; it needs a restart`;
  }
  const withheld = one.ports.map((port) => evidence.withheldPorts.get(portName(port)));
  const ports = withheld.filter((fault) => fault !== undefined).join('; ');
  if (ports !== '') {
    return `not reached through a reserved port: ${ports}`;
  }
  const subject = { address: one.address, macAddress: one.macAddress, port: one.tap, bridge: layout.bridge };
  const culprits = chainsStopping(evidence.foreign, subject).filter((chain) => !probed.has(chain));
  return culprits.length === 0
    ? undefined
    : `packets of ${one.address} are dropped by ${culprits.join(' and ')}`;
}

/** Without what the caller knows. */
export function reportOn(
  layout: Layout,
  attachments: readonly Attachment[],
  evidence: Evidence,
): Omit<NetworkReport, 'repaired' | 'refusedConnections'> {
  const { innerAddress: address, innerMac: macAddress, innerPort: port } = layout.probe;
  const probe: Subject = { address, macAddress, port, bridge: layout.bridge };
  const culprits = chainsStopping(evidence.foreign, probe);
  const general = [
    ...(evidence.failedRepair === undefined ? [] : [evidence.failedRepair]),
    ...evidence.lostPaths.map((path) => explainLoss(path, culprits)),
  ];
  const probed = new Set(culprits);
  const machines: NetworkReport['machines'] = {};
  const single: string[] = [];
  for (const one of attachments) {
    const fault = machineFault(one, layout, evidence, probed);
    if (fault !== undefined) {
      single.push(`machine ${one.uid}: ${fault}`);
    }
    const faults = [...general, ...(fault === undefined ? [] : [fault])];
    const message =
      faults.length === 0 ? `connected as ${one.address}; probe packets came through` : faults.join('; ');
    machines[one.uid] = { healthy: faults.length === 0, message };
  }
  return { healthy: general.length === 0, faults: [...general, ...single], machines };
}

/** When looking itself failed. */
export function reportUnknown(attachments: readonly Attachment[], message: string): NetworkReport {
  const machines = attachments.map((one) => [one.uid, { healthy: false, message }] as const);
  const nothing = { repaired: [], refusedConnections: {} };
  return { ...nothing, healthy: false, faults: [message], machines: Object.fromEntries(machines) };
}
