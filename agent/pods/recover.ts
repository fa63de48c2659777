/**
 * Takes over the machines that continued to run during a restart of the agent. Creates a record for each machine folder or network
 * attachment that has no record.
 */
import { ADOPTS_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import { keyOf } from '../../kube/objects.ts';
import type { FoundMachine } from '../drivers/driver.ts';
import { allDrivers, chooseDriver, driverOf } from '../drivers/hostdrivers.ts';
import { reportedPorts } from '../network/portplan.ts';
import { recordDamaged, recordMissing } from './failure.ts';
import type { PodHost } from './host.ts';
import {
  type MachineDocument,
  type MachineRecord,
  needed,
  newRecord,
  type Runtime,
  type Runtimes,
} from './machine.ts';
import { namespaceOptions } from './network.ts';
import { claimOf, documentOf, lastReport, roleOf } from './pod.ts';
import { automaticPortsOf, namesOfHeld, portsOf } from './ports.ts';

/** Prefix of the keys of machines without a known Pod. No Pod has such a key, because no namespace begins with a slash. */
const STRAY_PREFIX = '/stray-';

/**
 * Creates a record for each machine folder and network attachment without a record. With such a record, the agent later removes the machine
 * if it has no Pod. The function also tells the image store which images are in use, and tells the network driver which machines
 * are attached.
 */
export async function adoptMachines(host: PodHost, machines: Runtimes): Promise<void> {
  for (const { uid, path, message } of host.records.damaged) {
    host.logger.error(
      { uid, path, message },
      'The record of a machine cannot be read, so the machine stays as it is',
    );
  }
  const found = await findMachines(host);
  await adoptStrays(host, found);
  adoptImages(host, found);
  for (const record of host.records.list()) {
    const { machine, emulator, uid } = record;
    if (record.released || (machine === undefined && emulator === undefined)) {
      continue;
    }
    const runtime = machines.runtime(record);
    try {
      runtime.state = await driverOf(host, record).inspect(runtime.folder);
      runtime.unseen &&= runtime.state.kind !== 'running';
      const network = await attachAgain(host, runtime);
      runtime.address = network.address ?? (await host.network.address(uid));
    } catch (error) {
      // If a running machine cannot be attached to the network, the agent continues, because the machine still runs. Later checks repair
      // its network, and its next start attaches the machine again.
      host.logger.error(
        { err: error, uid },
        'A machine that already ran on this host could not be attached to the network',
      );
    }
  }
}

/**
 * Attaches a machine to the network again after the agent has found the machine on this host. The ports are not checked, because a running
 * machine already uses its ports.
 */
async function attachAgain(
  host: PodHost,
  { record, state }: Runtime,
): Promise<{ address: string | undefined }> {
  const { uid, machine, emulator, runAs } = record;
  const running = state.kind === 'running';
  if (emulator !== undefined) {
    return await host.network.attachNamespace(uid, { ...namespaceOptions(host, record, emulator), running });
  }
  const { macAddress } = needed(machine).hardware;
  const options = { macAddress, ports: portsOf(record), running, ...(runAs && { runAs }) };
  return await host.network.attach(uid, options);
}

/**
 * Creates records for machines without a record. Each record has the Linux user of the machine's process, so that no other machine gets
 * this user.
 */
async function adoptStrays(host: PodHost, found: Found): Promise<void> {
  const damaged = new Set(host.records.damaged.map(({ uid }) => uid));
  const uids = [...found.keys(), ...(await host.network.attached())];
  for (const uid of new Set(uids)) {
    if (host.records.get(uid) === undefined && !damaged.has(uid)) {
      host.logger.warn({ uid }, 'A machine has no record. If it has no Pod either, it is removed');
      host.records.save(foundRecord(host, { uid, ...strayIdentity(uid) }, found));
    }
  }
}

/**
 * Replaces unreadable and missing records of machines after the list of Pods is known. A machine with a Pod fails and keeps its disk. Such
 * a machine keeps its ports until its guest is shut down. A machine without a Pod is removed.
 */
export async function adoptDamaged(host: PodHost, pods: readonly Readonly<Pod>[]): Promise<void> {
  // A Pod that continues the machine of an earlier Pod names that Pod. The machine has the uid of the earlier Pod.
  const byUid = new Map(pods.flatMap((pod) => uidsOf(pod).map((uid) => [uid, pod])));
  const found = await findMachines(host);
  for (const { uid, message } of host.records.damaged) {
    const pod = byUid.get(uid);
    const identity = pod === undefined ? strayIdentity(uid) : identityOf(pod);
    const record = foundRecord(host, { uid, ...identity }, found);
    const failure = pod === undefined ? undefined : recordDamaged({ message }, identity);
    const automaticPorts = pod === undefined ? [] : portsInReport(host, record, pod);
    host.records.replaceDamaged({ ...record, failure, automaticPorts });
  }
  for (const [uid, pod] of byUid) {
    const record = host.records.get(uid);
    if (record?.key.startsWith(STRAY_PREFIX) === true) {
      adoptUnrecorded(host, record, pod, found);
    }
  }
}

function uidsOf({ metadata: { uid = '', annotations } }: Readonly<Pod>): string[] {
  const earlier = annotations?.[ADOPTS_ANNOTATION];
  return earlier === undefined ? [uid] : [uid, earlier];
}

/** Gives a machine without a record of its own the document of its Pod. */
function adoptUnrecorded(host: PodHost, record: MachineRecord, pod: Readonly<Pod>, found: Found): void {
  const identity = identityOf(pod);
  // If the machine has no folder, the agent found only its network attachment. The planner then reports that the disk is lost.
  const failure = found.has(record.uid) ? recordMissing(identity) : undefined;
  const automaticPorts = portsInReport(host, { ...record, ...identity }, pod);
  host.records.update(record, { ...identity, failure, automaticPorts });
}

/**
 * Returns the host ports that this host chose for a machine, as the last report in the machine's Pod lists them. Host ports that another
 * machine has are left out.
 */
function portsInReport(
  { records, ports }: PodHost,
  record: MachineRecord,
  pod: Readonly<Pod>,
): MachineRecord['automaticPorts'] {
  const held = namesOfHeld(records.list().filter((other) => other.uid !== record.uid));
  return reportedPorts(
    automaticPortsOf(record),
    lastReport(pod).endpoints ?? [],
    (name) => held.has(name),
    ports,
  );
}

type MachineIdentity = Pick<MachineRecord, 'key' | 'claim' | 'podUid'> & MachineDocument;

function strayIdentity(uid: string): MachineIdentity {
  const claim = { slots: 0, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  return { key: `${STRAY_PREFIX}${uid}`, machine: undefined, claim };
}

function identityOf(pod: Readonly<Pod>): MachineIdentity {
  const { uid: podUid = '' } = pod.metadata;
  return { key: keyOf(pod), podUid, ...documentOf(roleOf(pod)), claim: claimOf(pod) };
}

/**
 * Machines of all drivers of this host, with the name of their driver. The key is the machine's uid. The QEMU driver lists the folders of
 * all drivers, so two drivers can list the same machine. In this case, the driver that comes later in {@link allDrivers} has priority.
 */
type Found = ReadonlyMap<string, FoundMachine & { driver: string }>;

async function findMachines(host: PodHost): Promise<Found> {
  const lists = allDrivers(host).map(async (driver) => {
    const machines = await driver.list();
    return machines.map((one) => [one.uid, { ...one, driver: driver.name }] as const);
  });
  return new Map((await Promise.all(lists)).flat());
}

/**
 * Returns a new record for a machine that was found on the host. The machine may still be running, so the record has the Linux user of the
 * machine's process.
 */
function foundRecord(
  host: PodHost,
  { uid, ...identity }: MachineIdentity & { uid: string },
  found: Found,
): MachineRecord {
  const { driver, runAs } = found.get(uid) ?? {
    driver: chooseDriver(host, identity),
    runAs: undefined,
  };
  return { ...newRecord({ uid, driver, ...identity }), created: true, released: false, runAs };
}

function adoptImages(host: PodHost, found: Found): void {
  const { records, images } = host;
  for (const { uid, base, isoPath } of records.list()) {
    for (const path of [base?.path, isoPath]) {
      if (path !== undefined) {
        images.adopt(`machine/${uid}`, path);
      }
    }
  }
  // Machines whose records are damaged or missing keep their images too, because their disks may stay.
  for (const [uid, { base }] of found) {
    if (base !== undefined && records.get(uid)?.base === undefined) {
      images.adopt(`machine/${uid}`, base);
    }
  }
}
