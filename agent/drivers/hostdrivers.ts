/** Contains the hypervisor drivers of one host, and chooses the driver of a new machine. The driver of a machine never changes. */
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import type { Accelerator, Driver, EmulatorOffer } from './driver.ts';

/** Name of the driver that runs all emulators of a host. */
const EMULATOR_DRIVER = 'emulator';

/** Driver of emulators. Its list {@link HostDriver.accelerators} is empty, so that this driver is never chosen for a VM. */
export interface DriverOfEmulators extends Driver {
  readonly name: typeof EMULATOR_DRIVER;
  /** Returns the system images in the SDK of the host. The driver reads the SDK at each call, because people can change the SDK. */
  offer(): Promise<EmulatorOffer>;
}

export interface HostDriver {
  driver: Driver;
  /** Accelerator for each guest architecture that the driver can run here. Empty if the driver cannot run any guest. */
  accelerators: readonly Accelerator[];
}

export interface HostDrivers {
  /** Drivers by name, the preferred driver first. */
  readonly drivers: ReadonlyMap<string, HostDriver>;
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
  { drivers }: Pick<HostDrivers, 'drivers'>,
  { driver }: Pick<MachineWithDriver, 'driver'>,
): Driver {
  const found = drivers.get(driver);
  if (found === undefined) {
    throw new Error(`This agent has no driver "${driver}"`);
  }
  return found.driver;
}

/**
 * Registers `changed` with all drivers. A driver calls `changed` with a machine's uid when the machine's state might have changed without a
 * call to the driver.
 */
export function onMachineChange(
  { drivers }: Pick<HostDrivers, 'drivers'>,
  changed: (uid: string) => void,
): void {
  for (const { driver } of drivers.values()) {
    driver.onChange(changed);
  }
}

/**
 * Returns the name of the driver for a new machine. For a VM, this is the first driver that can run the VM's architecture. If no driver can
 * run this architecture, the function chooses the first driver, so that this driver's error tells the user why.
 */
export function chooseDriver(
  { drivers, architecture }: HostDrivers,
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
 * Returns the accelerator with which the machine runs. If the driver does not know it, the function returns the one that the driver had at
 * the start of the agent; undefined if the driver cannot run the machine.
 */
export function acceleratorOf(
  { drivers, architecture }: HostDrivers,
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
