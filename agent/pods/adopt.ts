/** What an earlier agent left on this host: machines that run on, and traces that belong to nobody. */
import { join } from 'node:path';
import { readMachineFile } from '../machines/folder.ts';
import type { Host } from './host.ts';
import type { Machines } from './machines.ts';
import { newRecord } from './record.ts';

/** Key of what no Pod of this host ever named: no namespace has a slash before its name, so no Pod can have it. */
const STRAY_PREFIX = '/stray-';

/**
 * Gives every machine folder and network attachment a record, so that what has no Pod is torn down like any other machine,
 * and makes known to the store which images machines run from, and to the network which attachments are to be there.
 */
export async function adoptMachines(host: Host, machines: Machines): Promise<void> {
  await adoptStrays(host);
  adoptImages(host);
  for (const record of host.records.list()) {
    const { machine, uid, runAs } = record;
    if (record.released || machine === undefined) {
      continue;
    }
    const runtime = machines.runtime(record);
    const state = await host.driver.inspect(runtime.folder);
    runtime.state = state;
    const { macAddress } = machine.hardware;
    try {
      const running = state.kind === 'running';
      const options = { macAddress, ports: machine.ports, running, ...(runAs && { runAs }) };
      const network = await host.network.attach(uid, options);
      runtime.address = network.address ?? (await host.network.address(uid));
    } catch (error) {
      // The machine runs on; checks go on repairing, and a start attaches again.
      host.logger.error({ err: error, uid }, 'network of a machine found on this host not attached');
    }
  }
}

/** What no record names. Its process keeps its user, which no other machine may get meanwhile. */
async function adoptStrays(host: Host): Promise<void> {
  const uids = [...(await host.driver.list()).map(({ uid }) => uid), ...(await host.network.attached())];
  for (const uid of new Set(uids)) {
    if (host.records.get(uid) === undefined) {
      host.logger.warn({ uid }, 'a machine without a record, removing it');
      const claim = { slots: 0, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
      const record = newRecord({ uid, key: `${STRAY_PREFIX}${uid}`, machine: undefined, claim });
      const state = await readMachineFile(join(host.machinesDirectory, uid));
      const runAs = state?.launched?.runAs;
      host.records.save({ ...record, created: true, released: false, runAs });
    }
  }
}

function adoptImages({ records, images }: Host): void {
  for (const { uid, base, isoPath } of records.list()) {
    for (const path of [base?.path, isoPath]) {
      if (path !== undefined) images.adopt(`machine/${uid}`, path);
    }
  }
}
