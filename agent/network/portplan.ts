/**
 * Chooses a host port for each guest port for which the user has named no host port. The functions are pure, so that tests can run random
 * sequences of events and check that no port belongs to two machines.
 */
import type { AutomaticPort, MachinePort } from '../../api/v1alpha1/machine.ts';
import { portName } from '../../api/v1alpha1/ports.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { bounds, type PortRanges, type PortRules, whyDenied } from '../../api/v1alpha1/reservable.ts';

/**
 * `kept` are the ports that the host chose for a machine before. `isHeld` takes the {@link portName} of a port, and returns whether another
 * machine or program uses the port.
 */
export interface Ledger {
  kept: readonly MachinePort[];
  isHeld: (name: string) => boolean;
}

/**
 * Returns one host port for each guest port, in the same order. The machine keeps a port that it had before, unless the port now has
 * another holder (a machine or program that uses it). For each other guest port, the function chooses the highest free port of the range.
 *
 * @throws ReasonedError `NoFreePort`, which names the range, when all ports of a range have holders.
 */
export function planPorts(
  asked: readonly AutomaticPort[],
  { kept, isHeld }: Ledger,
  ranges: PortRanges,
): MachinePort[] {
  const given = new Set<string>();
  const isTaken = (name: string): boolean => given.has(name) || isHeld(name);
  // The ports that the machine keeps are chosen first, so that no other guest port gets one of these ports.
  const stays = asked.map((one) => {
    const port = kept.find((had) => leadsTo(had, one) && !isTaken(portName(had)));
    return port && note(given, port);
  });
  return asked.map((one, index) => stays[index] ?? note(given, choose(one, isTaken, ranges)));
}

function note(given: Set<string>, port: MachinePort): MachinePort {
  given.add(portName(port));
  return port;
}

function leadsTo(port: MachinePort, { protocol, guestPort }: AutomaticPort): boolean {
  return port.protocol === protocol && port.guestPort === guestPort;
}

/**
 * Returns the host ports that the host reported for each guest port. The result is empty if a port is missing, is outside its range, or has
 * a holder (a machine or program that uses the port). A shorter list would be wrong, because its order must match the order of the guest
 * ports.
 *
 * @param isHeld returns whether the port with this {@link portName} has a holder.
 */
export function reportedPorts(
  asked: readonly AutomaticPort[],
  reported: readonly number[],
  isHeld: (name: string) => boolean,
  ranges: PortRanges,
): MachinePort[] {
  const ports = asked.flatMap((one, index) => {
    const { first, last } = rangeOf(one, ranges);
    const port = portAt(one, reported[index] ?? 0);
    return first <= port.hostPort && port.hostPort <= last && !isHeld(port.name) ? [port] : [];
  });
  const areDistinct = new Set(ports.map(({ name }) => name)).size === reported.length;
  return areDistinct && ports.length === asked.length ? ports : [];
}

/** Purposes that each have a separate range of ports. */
const SETTINGS = ['ssh', 'screen', 'vnc', 'emulators'] as const;

/** Returns the range for a guest port: the name of the setting, the text of the range, and its first and last port. */
function rangeOf({ purpose }: AutomaticPort, ranges: PortRanges) {
  const setting = SETTINGS.find((one) => one === purpose) ?? 'automatic';
  const [first, last] = bounds(ranges[setting]) ?? [1, 0];
  return { setting, text: ranges[setting], first, last };
}

function portAt({ protocol, guestPort }: AutomaticPort, hostPort: number): MachinePort {
  return { name: portName({ hostPort, protocol }), protocol, hostPort, guestPort, automatic: true };
}

function choose(asked: AutomaticPort, isHeld: (name: string) => boolean, ranges: PortRanges): MachinePort {
  const { setting, text, first, last } = rangeOf(asked, ranges);
  for (let hostPort = last; hostPort >= first; hostPort -= 1) {
    const port = portAt(asked, hostPort);
    if (!isHeld(port.name)) {
      return port;
    }
  }
  const { protocol, guestPort } = asked;
  const range = `${text} (${last - first + 1} ports, ports.${setting} of the agent)`;
  const what = guestPort === 0 ? 'for VNC' : `for the guest port ${guestPort}`;
  const message = `No ${protocol} port ${what} is free on this host in the range ${range}`;
  throw new ReasonedError('NoFreePort', message);
}

/** Returns a message for each range in which all ports are denied. VMs would wait forever for a port of such a range. */
export function deniedRanges(ranges: PortRanges, rules: PortRules): string[] {
  return (['automatic', ...SETTINGS] as const).flatMap((setting) => {
    const [first, last] = bounds(ranges[setting]) ?? [1, 0];
    for (let port = first; port <= last; port += 1) {
      if (whyDenied(rules, port) === undefined) {
        return [];
      }
    }
    const why = `All ports in ${ranges[setting]} are among ports.denied (${rules.denied.join(', ')})`;
    return [`ports.${setting}: ${why}. Choose another range, or deny fewer ports`];
  });
}
