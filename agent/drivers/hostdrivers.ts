/** Contains the hypervisor drivers of one host, and chooses the driver of a new machine. The driver of a machine never changes. */
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import type { Accelerator, Driver, DriverOfVMs, EmulatorOffer, MachineFolder } from './driver.ts';

/** Name of the driver that runs all emulators of a host. */
const EMULATOR_DRIVER = 'emulator';

/** Driver of emulators. */
export interface DriverOfEmulators extends Driver {
  readonly name: typeof EMULATOR_DRIVER;
  /** Returns the system images in the SDK of the host. The driver reads the SDK at each call, because people can change the SDK. */
  offer(): Promise<EmulatorOffer>;
  /**
   * Removes the files of a machine that has failed permanently and has no process, and releases its Linux user. The machine's log stays.
   */
  discard(folder: MachineFolder): Promise<void>;
}

export interface HostDriver {
  driver: DriverOfVMs;
  /** Accelerator for each guest architecture that the driver can run here. Empty if the driver cannot run any guest. */
  accelerators: readonly Accelerator[];
}

export interface HostDrivers {
  /** Drivers of VMs by name, the preferred driver first. */
  readonly drivers: ReadonlyMap<string, HostDriver>;
  /** Driver of emulators. The driver exists even on hosts that offer no emulators, because it removes the machines of old emulators. */
  readonly emulators: DriverOfEmulators;
  /** Architecture of machines that do not name an architecture. */
  readonly architecture: Accelerator['architecture'];
}

/** Description of a VM (`machine`) or of an emulator (`emulator`). */
interface Document {
  machine: Machine | undefined;
  emulator?: EmulatorMachine | undefined;
}

type MachineWithDriver = Readonly<{ driver: string; machine: Machine | undefined }>;

/** Returns the driver that created the machine. @throws Error when this agent has no driver of that name. */
export function driverOf(
  { drivers, emulators }: Pick<HostDrivers, 'drivers' | 'emulators'>,
  { driver }: Pick<MachineWithDriver, 'driver'>,
): Driver {
  return driver === EMULATOR_DRIVER ? emulators : driverOfVM({ drivers }, { driver });
}

/** Returns the driver that created the machine of a VM. @throws Error when this agent has no driver of VMs of that name. */
export function driverOfVM(
  { drivers }: Pick<HostDrivers, 'drivers'>,
  { driver }: Pick<MachineWithDriver, 'driver'>,
): DriverOfVMs {
  const found = drivers.get(driver);
  if (found === undefined) {
    throw new Error(`This agent has no driver "${driver}" for VMs`);
  }
  return found.driver;
}

/** Returns all drivers of a host. The driver of emulators comes last. */
export function allDrivers({ drivers, emulators }: Pick<HostDrivers, 'drivers' | 'emulators'>): Driver[] {
  return [...[...drivers.values()].map(({ driver }) => driver), emulators];
}

/**
 * Returns the name of the driver for a new machine. For a VM, this is the first driver that can run the VM's architecture. If no driver can
 * run this architecture, the function chooses the first driver, so that this driver's error tells the user why.
 */
export function chooseDriver(
  { drivers, architecture }: Omit<HostDrivers, 'emulators'>,
  { machine, emulator }: Readonly<Document>,
): string {
  if (emulator !== undefined) {
    return EMULATOR_DRIVER;
  }
  const wanted = machine?.architecture ?? architecture;
  const names = [...drivers.keys()];
  const [first = ''] = names;
  return names.find((name) => acceleratorIn(drivers.get(name), wanted) !== undefined) ?? first;
}

/**
 * Returns the accelerator with which the machine runs. If the driver does not know it, the function returns the accelerator that the driver
 * had when the agent started. The result is undefined if the driver cannot run the machine.
 */
export function acceleratorOf(
  { drivers, architecture }: Omit<HostDrivers, 'emulators'>,
  { driver, machine }: MachineWithDriver,
  state: Readonly<{ kind: string; accelerator?: string }>,
): string | undefined {
  return state.accelerator ?? acceleratorIn(drivers.get(driver), machine?.architecture ?? architecture);
}

function acceleratorIn(
  driver: HostDriver | undefined,
  architecture: Accelerator['architecture'],
): string | undefined {
  return driver?.accelerators.find((one) => one.architecture === architecture)?.accelerator;
}
