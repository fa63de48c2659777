/** Takes up the things that an earlier agent left on this host: machines that run on, and traces that belong to nobody. */
import { join } from 'node:path';
import type { Pod } from '../../kube/core.ts';
import { keyOf } from '../../kube/objects.ts';
import { type MachineFile, readMachineFile } from '../machines/folder.ts';
import type { Host } from './host.ts';
import type { Machines } from './machines.ts';
import { claimOf } from './admission.ts';
import { recordDamaged } from './failure.ts';
import { type MachineRecord, newRecord } from './machine.ts';
import { roleOf } from './pod.ts';

/** Begins the key of a machine that no Pod ever named. No Pod has such a key, since no namespace begins with a slash. */
const STRAY_PREFIX = '/stray-';

/**
 * Gives every machine folder and network attachment a record, so that machines without a Pod are removed like any other. Tells the
 * store which images machines run from, and the network which attachments there are.
 */
export async function adoptMachines(host: Host, machines: Machines): Promise<void> {
  for (const { uid, path, message } of host.records.damaged) {
    host.logger.error({ uid, path, message }, 'the record of a machine cannot be read, leaving it alone');
  }
  await adoptStrays(host);
  await adoptImages(host);
  for (const record of host.records.list()) {
    const { machine, uid, runAs } = record;
    if (record.released || machine === undefined) {
      continue;
    }
    const runtime = machines.runtime(record);
    const { macAddress } = machine.hardware;
    try {
      runtime.state = await host.driver.inspect(runtime.folder);
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
async function adoptStrays(host: Host): Promise<void> {
  const damaged = new Set(host.records.damaged.map(({ uid }) => uid));
  const uids = [...(await host.driver.list()).map(({ uid }) => uid), ...(await host.network.attached())];
  for (const uid of new Set(uids)) {
    if (host.records.get(uid) === undefined && !damaged.has(uid)) {
      host.logger.warn({ uid }, 'a machine without a record, removing it');
      host.records.save(await foundRecord(host, uid, strayIdentity(uid)));
    }
  }
}

/**
 * Gives machines whose records cannot be read new ones, once it is known which Pods there are: a machine that has a Pod
 * fails with its disk kept, another one is torn down.
 */
export async function adoptDamaged(host: Host, pods: readonly Readonly<Pod>[]): Promise<void> {
  const byUid = new Map(pods.map((pod) => [pod.metadata.uid, pod]));
  for (const { uid, path, message } of host.records.damaged) {
    const pod = byUid.get(uid);
    const record = await foundRecord(host, uid, pod === undefined ? strayIdentity(uid) : identityOf(pod));
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

/** The record of a machine found on the host: it may run, and its process keeps its user. */
async function foundRecord(host: Host, uid: string, identity: MachineIdentity): Promise<MachineRecord> {
  const state = await stateOf(host, uid);
  return {
    ...newRecord({ uid, ...identity }),
    created: true,
    released: false,
    runAs: state?.launched?.runAs,
  };
}

/** Undefined also for a state that cannot be read: the driver then refuses each step with the cause. */
async function stateOf(host: Host, uid: string): Promise<MachineFile | undefined> {
  try {
    return await readMachineFile(join(host.machinesDirectory, uid));
  } catch (error) {
    host.logger.error({ err: error, uid }, 'the state of a machine cannot be read');
    return undefined;
  }
}

async function adoptImages(host: Host): Promise<void> {
  const { records, images } = host;
  for (const { uid, base, isoPath } of records.list()) {
    for (const path of [base?.path, isoPath]) {
      if (path !== undefined) {
        images.adopt(`machine/${uid}`, path);
      }
    }
  }
  for (const { uid } of records.damaged) {
    const base = (await stateOf(host, uid))?.base;
    if (base !== undefined) {
      images.adopt(`machine/${uid}`, base.path);
    }
  }
}
