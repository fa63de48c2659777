/** Connects machines to a working network before they start, and updates the network's health while they run. */
import { isDeepStrictEqual } from 'node:util';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import { ADB_PORT } from '../../api/v1alpha1/names.ts';
import { classOf, ReasonedError, reasonIn } from '../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../base/errors.ts';
import { pause } from '../../base/time.ts';
import type { GuestNetwork, NamespaceNetwork, NamespaceOptions, NetworkReport } from '../network/network.ts';
import { ownUser } from '../processes/users.ts';
import { type PodHost } from './host.ts';
import { type MachineRecord, needed, type Runtime, type Runtimes } from './machine.ts';
import { holdPorts, portsOf } from './ports.ts';

/**
 * Number of further network checks after the first check that found a fault. Each check also repairs the network. If all these checks find
 * a fault, the start fails.
 */
const HEAL_ATTEMPTS = 3;
const HEAL_PAUSE_MILLISECONDS = 500;
/**
 * Time after which a start no longer waits for a repair of the network. The last check can begin just before this time is over. If all
 * packets of this check are lost, the check takes 2 s. So a fault is still reported within the required 5 s.
 */
const HEAL_MILLISECONDS = 2_750;

/**
 * Attaches the machine of a VM to the network and resolves when the network works.
 *
 * @throws ReasonedError `NATSelfHealFailed` when the network does not work; ReasonedError `PortTaken`, `PortNotReservable` or
 * `NoFreePort` when a port cannot be reserved.
 */
export async function connect(host: PodHost, runtime: Runtime): Promise<GuestNetwork> {
  const { record } = runtime;
  const { macAddress } = needed(record.machine).hardware;
  const runAs = ownUser(host, record);
  return await connectBy(host, runtime, async () => {
    const options = { macAddress, ports: portsOf(record), ...(runAs && { runAs }) };
    return await host.network.attach(record.uid, options);
  });
}

/** Makes the network namespace of an emulator and resolves when the network works. @throws the same errors as {@link connect}. */
export async function connectNamespace(
  host: PodHost,
  runtime: Runtime,
  emulator: EmulatorMachine,
): Promise<NamespaceNetwork> {
  const { record } = runtime;
  return await connectBy(host, runtime, async () => {
    return await host.network.attachNamespace(record.uid, namespaceOptions(host, record, emulator));
  });
}

/**
 * Returns the options for the network namespace of an emulator. The machine of the emulator's VM may always connect to ADB. With `exposure:
 * Host`, ADB has a host port in addition.
 */
export function namespaceOptions(
  host: Pick<PodHost, 'records'>,
  record: Readonly<MachineRecord>,
  emulator: EmulatorMachine,
): NamespaceOptions {
  return {
    exposedPort: ADB_PORT,
    peer: host.records.ofVM(emulator.vm.uid)?.uid,
    ports: portsOf(record),
  };
}

/**
 * Attaches the machine with the function `once`, and resolves when the network works. If `once` fails, the agent checks and repairs the
 * network, and calls `once` a second time. There is no second call if the error is about reserved ports.
 */
async function connectBy<Connection extends { address: string | undefined }>(
  host: PodHost,
  runtime: Runtime,
  once: () => Promise<Connection>,
): Promise<Connection> {
  const { record } = runtime;
  const network = await attach(host, record, once);
  const began = performance.now();
  for (let attempt = 1; ; attempt += 1) {
    const fault = networkFault(await host.monitor.checkOf(record.uid), record);
    if (fault === undefined) {
      break;
    }
    if (attempt > HEAL_ATTEMPTS || performance.now() - began >= HEAL_MILLISECONDS) {
      throw new ReasonedError('NATSelfHealFailed', fault);
    }
    await pause(HEAL_PAUSE_MILLISECONDS);
  }
  runtime.address = network.address ?? (await host.network.address(record.uid));
  return network;
}

/**
 * Returns the network fault that prevents a start. This is a fault of the whole network. If the machine has never run, a fault of
 * this machine alone also prevents the start.
 */
function networkFault(report: NetworkReport, { uid, everRan }: MachineRecord): string | undefined {
  if (!report.healthy) {
    return report.faults.join('; ');
  }
  const own = report.machines[uid];
  return own?.healthy === false && !everRan ? own.message : undefined;
}

/** Returns whether the error is about reserved ports. In this case, no repair of the network can help. */
function isAboutPorts(error: unknown): boolean {
  return classOf(reasonIn(error), 'VM') === 'elsewhere';
}

async function attach<Connection>(
  host: PodHost,
  record: MachineRecord,
  once: () => Promise<Connection>,
): Promise<Connection> {
  await holdPorts(host, record);
  // The record is written before the attempt, so that an incomplete attachment is also released later.
  host.records.update(record, { released: false });
  try {
    return await once();
  } catch (error) {
    if (isAboutPorts(error)) {
      throw error;
    }
    host.logger.warn(
      { err: error, uid: record.uid },
      'A machine could not be attached to the network, so the agent checks the network',
    );
  }
  await host.monitor.check();
  try {
    return await once();
  } catch (error) {
    throw isAboutPorts(error)
      ? error
      : new ReasonedError('NATSelfHealFailed', messageOf(error), { cause: error });
  }
}

/** Access to the machines of this host. `touch` reports that something about the machine with this uid has changed. */
interface Followers {
  machines: Runtimes;
  touch(uid: string): void;
}

/** Passes a report of the network monitor to all machines that are attached to the network. */
export function followNetwork(host: PodHost, followers: Followers, report: NetworkReport): void {
  for (const record of host.records.list()) {
    if (!record.released) {
      follow(host, record, followers, report).catch((error: unknown) => {
        host.logger.warn({ err: error, uid: record.uid }, 'The address of a machine was not found');
      });
    }
  }
}

async function follow(
  host: PodHost,
  record: MachineRecord,
  followers: Followers,
  report: NetworkReport,
): Promise<void> {
  const { uid } = record;
  const runtime = followers.machines.runtime(record);
  const health = report.healthy
    ? report.machines[uid]
    : { healthy: false, message: report.faults.join('; ') };
  const address = await host.network.address(uid);
  if (!isDeepStrictEqual(runtime.network, health) || runtime.address !== address) {
    runtime.network = health;
    runtime.address = address;
    followers.touch(uid);
  }
}
