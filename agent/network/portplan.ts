/**
 * Chooses a host port for each guest port for which the user has named no host port. The functions are pure, so that tests can run random
 * sequences of events and check that no port belongs to two machines.
 */
import type { AutomaticPort, MachinePort } from '../../api/v1alpha1/machine.ts';
import { bounds, portName, type PortRanges, type PortRules, whyDenied } from '../../api/v1alpha1/ports.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';

/**
 * Facts for the choice of host ports. `kept` are the host ports that were chosen for the machine before. `isHeld` takes the name of a host
 * port (see {@link portName}), and returns whether this host port is unusable: in use by another machine or program, or denied by the
 * configuration.
 */
export interface Ledger {
  kept: readonly MachinePort[];
  isHeld: (name: string) => boolean;
}

/**
 * Returns one host port for each guest port, in the same order. A guest port keeps the host port that it had before, unless this host port
 * is now unusable. For each other guest port, the function chooses the highest usable host port of the range.
 *
 * @throws ReasonedError `NoFreePort`, which names the range, when no host port of a range is usable.
 */
export function planPorts(
  asked: readonly AutomaticPort[],
  { kept, isHeld }: Ledger,
  ranges: PortRanges,
): MachinePort[] {
  const given = new Set<string>();
  const isTaken = (name: string): boolean => given.has(name) || isHeld(name);
  // The host ports that the machine keeps are assigned first, so that no other guest port gets one of these host ports.
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
 * Returns the host ports of a machine's guest ports, as the last report on the machine lists them in the order of the guest ports. If the
 * report lacks a host port, or lists one that is outside its range or held by another machine, the result is empty. If only this host port
 * were left out, the other host ports could get the wrong guest ports.
 *
 * @param isHeld returns whether another machine holds the host port with this {@link portName}.
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
    return first <= port.hostPort && port.hostPort <= last && !isHeld(portName(port)) ? [port] : [];
  });
  const areDistinct = new Set(ports.map(portName)).size === reported.length;
  return areDistinct && ports.length === asked.length ? ports : [];
}

/** Purposes of guest ports. Each of these purposes has a separate range of host ports. */
const SETTINGS = ['ssh', 'screen', 'vnc', 'emulators'] as const;

/** Returns the range of host ports for a guest port: the name of its setting, the range as text, and the first and last host port. */
function rangeOf({ purpose }: AutomaticPort, ranges: PortRanges) {
  const setting = SETTINGS.find((one) => one === purpose) ?? 'automatic';
  const [first, last] = bounds(ranges[setting]) ?? [1, 0];
  return { setting, text: ranges[setting], first, last };
}

function portAt({ protocol, guestPort }: AutomaticPort, hostPort: number): MachinePort {
  return { protocol, hostPort, guestPort, automatic: true };
}

function choose(asked: AutomaticPort, isHeld: (name: string) => boolean, ranges: PortRanges): MachinePort {
  const { setting, text, first, last } = rangeOf(asked, ranges);
  for (let hostPort = last; hostPort >= first; hostPort -= 1) {
    const port = portAt(asked, hostPort);
    if (!isHeld(portName(port))) {
      return port;
    }
  }
  const { protocol, guestPort } = asked;
  const range = `${text} (${last - first + 1} ports; the agent's setting is ports.${setting})`;
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
