/**
 * Finds out which host ports belong to which machine, and chooses host ports for machines. The agent does not choose a port that a bound Pod
 * reserves, or that another machine already has. The chosen ports are saved in the machines' records, so that they survive a restart of the
 * agent.
 */
import type { AutomaticPort, MachinePort } from '../../api/v1alpha1/machine.ts';
import { ADB_PORT } from '../../api/v1alpha1/names.ts';
import { type HostPort, portName } from '../../api/v1alpha1/ports.ts';
import { reasonIn } from '../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../base/errors.ts';
import type { Pod } from '../../kube/core.ts';
import { planPorts } from '../network/portplan.ts';
import type { PodHost } from './host.ts';
import type { MachineDocument, MachineRecord } from './machine.ts';
import { claimOf, isEnded } from './pod.ts';

const ADB_OF_EMULATOR: AutomaticPort = { purpose: 'emulators', protocol: 'TCP', guestPort: ADB_PORT };

/** Returns a machine's guest ports for which this host chooses host ports. The guest port 0 stands for the machine's screen. */
export function automaticPortsOf({ machine, emulator }: Readonly<MachineDocument>): readonly AutomaticPort[] {
  return emulator?.exposure === 'Host' ? [ADB_OF_EMULATOR] : (machine?.automaticPorts ?? []);
}

/** Returns all host ports that lead into a machine's guest: the host ports that its VM names, and the host ports that this host chose. */
export function portsOf({ machine, automaticPorts }: Readonly<MachineRecord>): MachinePort[] {
  return [...(machine?.ports ?? []), ...automaticPorts.filter(({ guestPort }) => guestPort !== 0)];
}

/** Returns the host port on which the hypervisor serves the machine's screen. Undefined if the screen has no host port. */
export function vncPortOf({ automaticPorts }: Readonly<MachineRecord>): number | undefined {
  return automaticPorts.find(({ guestPort }) => guestPort === 0)?.hostPort;
}

/**
 * Returns whether the machine still occupies its host ports. A machine keeps its host ports until it is removed, or until it has failed and
 * has no process.
 */
export function holdsPorts({ failure, released }: Readonly<MachineRecord>): boolean {
  return failure === undefined || !released;
}

/** Returns the names of all host ports that the given machines occupy. */
export function namesOfHeld(records: readonly MachineRecord[]): Set<string> {
  const holders = records.filter(holdsPorts);
  return new Set([
    ...holders.flatMap(({ claim }) => claim.ports.map(portName)),
    ...holders.flatMap(({ automaticPorts }) => automaticPorts.map(portName)),
  ]);
}

/**
 * If a Pod waits for a host port that this host chose for another machine, returns a message about the wait. Otherwise returns undefined.
 * The message does not name VMs and emulators of other namespaces, because users must not learn these names.
 *
 * @param claimed host ports that the Pod reserves
 */
export function awaitedPort(
  { metadata: { uid, namespace } }: Readonly<Pod>,
  claimed: readonly HostPort[],
  records: readonly MachineRecord[],
): string | undefined {
  const wanted = claimed.map(portName);
  for (const other of records.filter((record) => record.uid !== uid && holdsPorts(record))) {
    const taken = other.automaticPorts.find((port) => wanted.includes(portName(port)));
    if (taken !== undefined) {
      const holder = holderFor(namespace, other);
      return `Port ${taken.hostPort}/${taken.protocol} is held by ${holder}, for which this host chose the port`;
    }
  }
  return undefined;
}

function holderFor(namespace: string | undefined, { machine, emulator }: Readonly<MachineDocument>): string {
  const kind = emulator === undefined ? 'VM' : 'emulator';
  const owner = emulator?.emulator ?? machine?.vm;
  const isOwn = owner !== undefined && owner.namespace === namespace;
  const other = emulator === undefined ? 'a VM' : 'an emulator';
  return isOwn ? `${kind} ${owner.name}` : `${other} of another namespace`;
}

type PortHost = Pick<PodHost, 'records' | 'network' | 'ports' | 'boundPods' | 'logger'>;

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
  return new Set([...namesOfHeld(others), ...claims.flatMap(({ ports }) => ports.map(portName))]);
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
