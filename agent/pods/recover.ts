/** Takes up the things that an earlier agent left on this host: machines that run on, and traces that belong to nobody. */
import type { Pod } from '../../kube/core.ts';
import { keyOf } from '../../kube/objects.ts';
import type { FoundMachine } from '../drivers/driver.ts';
import { chooseDriver, driverOf, type Host } from './host.ts';
import { claimOf } from './admission.ts';
import { recordDamaged } from './failure.ts';
import { type MachineRecord, newRecord, type Runtimes } from './machine.ts';
import { roleOf } from './pod.ts';

/** Begins the key of a machine that no Pod ever named. No Pod has such a key, since no namespace begins with a slash. */
const STRAY_PREFIX = '/stray-';

/**
 * Gives every machine folder and network attachment a record, so that machines without a Pod are removed like any other. Tells the
 * store which images machines run from, and the network which attachments there are.
 */
export async function adoptMachines(host: Host, machines: Runtimes): Promise<void> {
  for (const { uid, path, message } of host.records.damaged) {
    host.logger.error({ uid, path, message }, 'the record of a machine cannot be read, leaving it alone');
  }
  const found = await findMachines(host);
  await adoptStrays(host, found);
  adoptImages(host, found);
  for (const record of host.records.list()) {
    const { machine, uid, runAs } = record;
    if (record.released || machine === undefined) {
      continue;
    }
    const runtime = machines.runtime(record);
    const { macAddress } = machine.hardware;
    try {
      runtime.state = await driverOf(host, record).inspect(runtime.folder);
      const running = runtime.state.kind === 'running';
      const options = { macAddress, ports: machine.ports, running, ...(runAs && { runAs }) };
      const network = await host.network.attach(uid, options);
      runtime.address = network.address ?? (await host.network.address(uid));
    } catch (error) {
      // The machine runs on; checks go on repairing, and a start attaches again.
      host.logger.error({ err: error, uid }, 'network of a machine found on this host not attached');
    }
  }
}

/** Gives a record to machines that have none. Their processes keep their users, which no other machine may get. */
async function adoptStrays(host: Host, found: Found): Promise<void> {
  const damaged = new Set(host.records.damaged.map(({ uid }) => uid));
  const uids = [...found.keys(), ...(await host.network.attached())];
  for (const uid of new Set(uids)) {
    if (host.records.get(uid) === undefined && !damaged.has(uid)) {
      host.logger.warn({ uid }, 'a machine without a record, removing it');
      host.records.save(foundRecord(host, { uid, ...strayIdentity(uid) }, found));
    }
  }
}

/**
 * Gives machines whose records cannot be read new ones, once it is known which Pods there are: a machine that has a Pod
 * fails with its disk kept, another one is torn down.
 */
export async function adoptDamaged(host: Host, pods: readonly Readonly<Pod>[]): Promise<void> {
  const byUid = new Map(pods.map((pod) => [pod.metadata.uid, pod]));
  const found = await findMachines(host);
  for (const { uid, path, message } of host.records.damaged) {
    const pod = byUid.get(uid);
    const identity = pod === undefined ? strayIdentity(uid) : identityOf(pod);
    const record = foundRecord(host, { uid, ...identity }, found);
    const failure = pod === undefined ? undefined : recordDamaged(path, message);
    host.records.replaceDamaged({ ...record, failure });
  }
}

type MachineIdentity = Pick<MachineRecord, 'key' | 'machine' | 'claim'>;

function strayIdentity(uid: string): MachineIdentity {
  const claim = { slots: 0, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  return { key: `${STRAY_PREFIX}${uid}`, machine: undefined, claim };
}

function identityOf(pod: Readonly<Pod>): MachineIdentity {
  const role = roleOf(pod);
  return {
    key: keyOf(pod),
    machine: role.kind === 'machine' ? role.machine : undefined,
    claim: claimOf(pod),
  };
}

/** The machines of all drivers of this host, by uid, with the name of the driver. */
type Found = ReadonlyMap<string, FoundMachine & { driver: string }>;

async function findMachines({ drivers }: Host): Promise<Found> {
  const lists = [...drivers].map(async ([name, { driver }]) => {
    const machines = await driver.list();
    return machines.map((one) => [one.uid, { ...one, driver: name }] as const);
  });
  return new Map((await Promise.all(lists)).flat());
}

/** The record of a machine found on the host: it may run, and its process keeps its user. */
function foundRecord(
  host: Host,
  { uid, ...identity }: MachineIdentity & { uid: string },
  found: Found,
): MachineRecord {
  const { driver, runAs } = found.get(uid) ?? {
    driver: chooseDriver(host, identity.machine),
    runAs: undefined,
  };
  return { ...newRecord({ uid, driver, ...identity }), created: true, released: false, runAs };
}

function adoptImages(host: Host, found: Found): void {
  const { records, images } = host;
  for (const { uid, base, isoPath } of records.list()) {
    for (const path of [base?.path, isoPath]) {
      if (path !== undefined) {
        images.adopt(`machine/${uid}`, path);
      }
    }
  }
  for (const { uid } of records.damaged) {
    const base = found.get(uid)?.base;
    if (base !== undefined) {
      images.adopt(`machine/${uid}`, base);
    }
  }
}
