/** The network of each machine: one that works before its start, and watched while it runs. */
import { isDeepStrictEqual } from 'node:util';
import { classOf, ReasonedError, reasonIn } from '../../api/v1alpha1/reasons.ts';
import { pause } from '../../base/time.ts';
import { messageOf } from '../../base/errors.ts';
import type { GuestNetwork, NetworkReport } from '../network/network.ts';
import { type Host, ownUser } from './host.ts';
import { type MachineRecord, needed, type Runtime, type Runtimes } from './machine.ts';

/** Before a machine's network is given up: as many checks more, which repair, this far apart. */
const HEAL_ATTEMPTS = 3;
const HEAL_PAUSE_MILLISECONDS = 500;
/** A fault that is still there after this is final. A check that finds packets lost takes 2 s: all ends within the 5 s in which a fault is told. */
const HEAL_MILLISECONDS = 2_750;

/**
 * Attaches the machine to a network that works.
 *
 * @throws ReasonedError `NATSelfHealFailed` when it does not; ReasonedError `PortTaken` and ReasonedError `PortNotReservable` when a port cannot be had.
 */
export async function connect(host: Host, runtime: Runtime): Promise<GuestNetwork> {
  const { record } = runtime;
  const network = await attach(host, record);
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

/** A machine that has run before may start even if it alone is cut off: its disk is kept, and repairs go on. */
function networkFault(report: NetworkReport, { uid, everRan }: MachineRecord): string | undefined {
  if (!report.healthy) {
    return report.faults.join('; ');
  }
  const own = report.machines[uid];
  return own?.healthy === false && !everRan ? own.message : undefined;
}

/** Whether no repair of the network can help. */
function isAboutPorts(error: unknown): boolean {
  return classOf(reasonIn(error), 'VM') === 'elsewhere';
}

async function attach(host: Host, record: MachineRecord): Promise<GuestNetwork> {
  const { hardware, ports } = needed(record.machine);
  const runAs = ownUser(host, record);
  const options = { macAddress: hardware.macAddress, ports, ...(runAs && { runAs }) };
  // Written before the attempt, so that a half-made attachment is given back too.
  host.records.update(record, { released: false });
  try {
    return await host.network.attach(record.uid, options);
  } catch (error) {
    if (isAboutPorts(error)) {
      throw error;
    }
    host.logger.warn({ err: error, uid: record.uid }, 'network attachment failed, checking the network');
  }
  await host.monitor.check();
  try {
    return await host.network.attach(record.uid, options);
  } catch (error) {
    throw isAboutPorts(error)
      ? error
      : new ReasonedError('NATSelfHealFailed', messageOf(error), { cause: error });
  }
}

/** The owner of the machines; it hears when something about one has changed. */
interface Followers {
  machines: Runtimes;
  touch(uid: string): void;
}

/** Carries a report of the network's monitor to the machines that have a network. */
export function followNetwork(host: Host, followers: Followers, report: NetworkReport): void {
  for (const record of host.records.list()) {
    if (!record.released) {
      follow(host, record, followers, report).catch((error: unknown) => {
        host.logger.warn({ err: error, uid: record.uid }, 'address of a machine not found out');
      });
    }
  }
}

async function follow(
  host: Host,
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
