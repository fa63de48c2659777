/**
 * Chooses host ports for machines. The agent does not choose a port that a bound Pod reserves, or that another machine already has. The
 * chosen ports are saved in the machines' records, so that they survive a restart of the agent.
 */
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { portName } from '../../api/v1alpha1/ports.ts';
import { reasonIn } from '../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../base/errors.ts';
import { planPorts } from '../network/portplan.ts';
import { claimOf } from './admission.ts';
import type { Host } from './host.ts';
import type { MachineRecord } from './machine.ts';
import { isEnded } from './pod.ts';
import { automaticPortsOf, nameOfClaim, namesOfHeld } from './portclaims.ts';

type PortHost = Pick<Host, 'records' | 'network' | 'ports' | 'boundPods' | 'logger'>;

/**
 * Chooses the host ports for the machine's `automaticPorts`, and saves them in the record before the machine uses them. The machine keeps
 * the host ports that it already has, unless another program uses them. Call this function only while the machine has no process.
 *
 * @throws ReasonedError `NoFreePort` when a range has no free port left.
 */
export async function holdPorts(host: PortHost, record: MachineRecord): Promise<void> {
  const asked = automaticPortsOf(record);
  if (asked.length === 0) {
    return;
  }
  const usable = new Set<string>();
  const unusable = new Set<string>();
  for (;;) {
    // There must be no `await` between choosing the ports and saving them. Otherwise another machine could get the same port.
    const held = portsToAvoid(host, record);
    const isHeld = (name: string): boolean => held.has(name) || unusable.has(name);
    const planned = planPorts(asked, { kept: record.automaticPorts, isHeld }, host.ports);
    const unchecked = planned.find((port) => !usable.has(portName(port)));
    if (unchecked === undefined) {
      saveChoice(host, record, planned);
      return;
    }
    const isFree = await host.network.isUsable(record.uid, unchecked);
    (isFree ? usable : unusable).add(portName(unchecked));
  }
}

function saveChoice(host: PortHost, record: MachineRecord, planned: MachinePort[]): void {
  const numbers = (ports: readonly MachinePort[]): string => ports.map(portName).join(', ');
  const before = numbers(record.automaticPorts);
  const after = numbers(planned);
  if (before === after) {
    return;
  }
  if (before !== '') {
    host.logger.warn(
      { uid: record.uid, before, after },
      'A machine gets different host ports, because another program uses one of its earlier host ports',
    );
  }
  host.records.update(record, { automaticPorts: planned });
}

/**
 * Returns the names of all host ports that the agent must not choose for a machine: the host ports of other machines, the host ports that
 * other Pods of this host reserve, and the host ports that the machine itself reserves.
 */
function portsToAvoid({ records, boundPods }: PortHost, { uid, claim: own }: MachineRecord): Set<string> {
  const others = records.list().filter((record) => record.uid !== uid);
  const pods = boundPods().filter((pod) => pod.metadata.uid !== uid && !isEnded(pod));
  const claims = [own, ...pods.map(claimOf)];
  return new Set([...namesOfHeld(others), ...claims.flatMap(({ ports }) => ports.map(nameOfClaim))]);
}

/**
 * Returns the error to throw for a failed start. Another program can take a port after the agent has checked the port and before the
 * machine uses it. If a reserved port of the machine is still taken, the function returns `error` unchanged. Otherwise it returns an error
 * without a reason, so that the agent tries the start again. A retry helps if the agent itself had chosen the taken port, because the agent
 * then chooses a different one. A retry also helps if a reserved port was taken for only a moment, for example by the check of another
 * agent on this computer.
 */
export async function explainPortTaken(
  host: PortHost,
  record: MachineRecord,
  error: unknown,
): Promise<unknown> {
  if (reasonIn(error) !== 'PortTaken' || (await isReservedPortTaken(host, record))) {
    return error;
  }
  return new Error(messageOf(error), { cause: error });
}

async function isReservedPortTaken({ network }: PortHost, { uid, machine }: MachineRecord): Promise<boolean> {
  for (const port of machine?.ports ?? []) {
    if (!(await network.isUsable(uid, port))) {
      return true;
    }
  }
  return false;
}
