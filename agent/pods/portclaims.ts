/** Finds out which host ports belong to which machine. The data comes from the machines' records. */
import type { AutomaticPort, MachinePort } from '../../api/v1alpha1/machine.ts';
import { ADB_PORT } from '../../api/v1alpha1/names.ts';
import { portName } from '../../api/v1alpha1/ports.ts';
import type { Pod } from '../../kube/core.ts';
import type { MachineDocument, MachineRecord } from './machine.ts';

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
    ...holders.flatMap(({ claim }) => claim.ports.map(nameOfClaim)),
    ...holders.flatMap(({ automaticPorts }) => automaticPorts.map(portName)),
  ]);
}

/** Returns the name of a claimed host port. For example, the name of `TCP/8822` is `8822-tcp`. */
export function nameOfClaim(claimed: string): string {
  const [protocol = '', hostPort = ''] = claimed.split('/');
  return `${hostPort}-${protocol.toLowerCase()}`;
}

/**
 * If a Pod waits for a host port that this host chose for another machine, returns a message about the wait. Otherwise returns undefined.
 * The message does not name VMs and emulators of other namespaces, because users must not learn these names.
 *
 * @param claimed host ports that the Pod reserves, in the form `TCP/8822`.
 */
export function awaitedPort(
  { metadata: { uid, namespace } }: Readonly<Pod>,
  claimed: readonly string[],
  records: readonly MachineRecord[],
): string | undefined {
  const wanted = claimed.map(nameOfClaim);
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
