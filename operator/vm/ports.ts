/**
 * Computes the host ports of a VM's machine: those that the VM reserves, and those that its host chooses. Also computes the endpoints in
 * the status of the VM.
 */
import type { AutomaticPort, Machine, MachinePort, MachineReport } from '../../api/v1alpha1/machine.ts';
import { type GuestPort, parsePort, portName } from '../../api/v1alpha1/ports.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';

type Endpoint = NonNullable<VMStatus['endpoints']>[number];
type System = Machine['os'];

/** Values that determine the ports of a VM. They come from the VM and its VMConfig. */
export interface WantedPorts {
  readonly os: System;
  readonly networkMode: 'NAT' | 'Bridge';
  /** Ports as users write them: `8822:22` reserves host port 8822 for guest port 22. With `:22`, the host chooses the host port. */
  readonly ports: readonly string[];
  /** Whether SSH and screen sharing get host ports, even if `ports` does not list their guest ports. */
  readonly automaticPorts: boolean;
  /** Whether the screen is also served on a host port. */
  readonly vncHostPort: boolean;
}

/**
 * Guest ports on which the services of a guest listen by default. Each service has a separate range of host ports, and an endpoint with a
 * fixed name.
 */
const SERVICES: readonly (GuestPort & { purpose: string; of: (os: System) => boolean })[] = [
  { purpose: 'ssh', protocol: 'TCP', guestPort: 22, of: () => true },
  { purpose: 'screen', protocol: 'TCP', guestPort: 5900, of: (os) => os === 'MacOS' },
];

const VNC: AutomaticPort = { purpose: 'vnc', protocol: 'TCP', guestPort: 0 };

function isSame(one: GuestPort, other: GuestPort): boolean {
  return one.guestPort === other.guestPort && one.protocol === other.protocol;
}

function purposeOf(port: GuestPort, os: System): string | undefined {
  return SERVICES.find((service) => isSame(service, port) && service.of(os))?.purpose;
}

/** Returns the host ports that the VM reserves, each with the guest port to which it leads. */
export function reservedPorts({ ports }: Pick<WantedPorts, 'ports'>): MachinePort[] {
  return ports
    .map(parsePort)
    .flatMap(({ hostPort, protocol, guestPort }) =>
      hostPort === undefined ? [] : [{ protocol, hostPort, guestPort }],
    );
}

/**
 * Returns the guest ports for which the host chooses a host port. If `ports` lists the guest port of a service, the service gets only the
 * host port of that list entry.
 */
export function automaticPorts(wishes: WantedPorts): AutomaticPort[] {
  const { os } = wishes;
  const listed = wishes.ports.map(parsePort);
  const wanted = wishes.automaticPorts && wishes.networkMode === 'NAT' ? SERVICES : [];
  const own = wanted.filter((service) => service.of(os) && !listed.some((port) => isSame(port, service)));
  const asked = listed.filter(({ hostPort }) => hostPort === undefined);
  const ports = [...own, ...asked].map(({ protocol, guestPort }) => ({
    protocol,
    guestPort,
    purpose: purposeOf({ protocol, guestPort }, os),
  }));
  return wishes.vncHostPort ? [...ports, VNC] : ports;
}

/**
 * Returns the endpoints of the machine on its host. The reserved host ports come first, then the host ports that the host chose. The host
 * reports the chosen ports in the order of `automaticPorts`.
 */
export function endpointsOf(machine: Machine, report: MachineReport): Endpoint[] {
  const { ports, automaticPorts: asked } = machine;
  const { endpoints: chosen = [] } = report;
  const fixed = ports.map(({ protocol, hostPort, guestPort }) => ({
    name: portName({ hostPort, protocol }),
    protocol,
    hostPort,
    guestPort,
    ...purpose(purposeOf({ protocol, guestPort }, machine.os)),
  }));
  const found = asked.flatMap(({ protocol, guestPort, purpose: known }, index) => {
    const hostPort = chosen[index];
    return hostPort === undefined || chosen.length !== asked.length
      ? []
      : [
          {
            name: known ?? portName({ hostPort, protocol }),
            protocol,
            hostPort,
            ...(guestPort === 0 ? {} : { guestPort }),
            ...purpose(known),
          },
        ];
  });
  // A host can report any port number, and the API server refuses a status with two endpoints of the same name. Therefore duplicates are
  // left out.
  const all = [...fixed, ...found];
  return all.filter(({ name }, index) => all.findIndex((other) => other.name === name) === index);
}

function purpose(known: string | undefined): Pick<Endpoint, 'purpose'> {
  return known === undefined ? {} : { purpose: known };
}
