/** Measures the clone of a base image: the work of the driver on a machine before its start. */
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { pino } from 'pino';
import type { MachineFolder, VmPlan } from '../../agent/drivers/driver.ts';
import { QemuDriver } from '../../agent/drivers/qemu/driver.ts';
import type { BaseImage } from '../../agent/disks/disk.ts';
import { MACHINE_API_VERSION } from '../../api/v1alpha1/machine.ts';
import { withFolder } from './folder.ts';

const GIB = 1024 ** 3;
const BASES_GIB = [1, 10, 100];
const PIECE_BYTES = 1024 * 1024;
/** Size of the data in each base, which is spread over all of it. It is an eighth of the smallest base. */
const PIECES = 128;

export interface Clones {
  gibibytes: number;
  milliseconds: number[];
}

/** Clones the bases in turns, so that other load of the machine affects all of them. */
export async function measureClones(parent: string, count: number): Promise<Clones[]> {
  return await withFolder(parent, async (folder) => await measureIn(folder, count));
}

async function measureIn(dataDirectory: string, count: number): Promise<Clones[]> {
  const driver = new QemuDriver({ dataDirectory, architecture: 'amd64', logger: pino({ level: 'silent' }) });
  try {
    // The first call asks once for the abilities of the host.
    await driver.probe();
    const bases = await Promise.all(
      BASES_GIB.map(async (gibibytes) => ({
        base: await makeBase(dataDirectory, gibibytes),
        clones: { gibibytes, milliseconds: [] as number[] },
      })),
    );
    for (let run = 0; run < count; run += 1) {
      for (const { base, clones } of bases) {
        clones.milliseconds.push(await cloneOnce(driver, base, { dataDirectory, uid: `clone-${run}` }));
      }
    }
    return bases.map(({ clones }) => clones);
  } finally {
    await driver.close();
  }
}

async function makeBase(folder: string, gibibytes: number): Promise<BaseImage> {
  const path = join(folder, `base-${gibibytes}`);
  const virtualSizeBytes = gibibytes * GIB;
  const file = await open(path, 'w');
  await file.truncate(virtualSizeBytes);
  const piece = Buffer.alloc(PIECE_BYTES, 'data');
  for (let index = 0; index < PIECES; index += 1) {
    await file.write(piece, 0, PIECE_BYTES, index * (virtualSizeBytes / PIECES));
  }
  await file.close();
  return { path, digest: 'sha256:unused', format: 'raw', virtualSizeBytes };
}

/** Times in milliseconds. */
async function cloneOnce(
  driver: QemuDriver,
  base: BaseImage,
  { dataDirectory, uid }: { dataDirectory: string; uid: string },
): Promise<number> {
  const folder: MachineFolder = { uid, path: join(dataDirectory, 'machines', uid) };
  const began = performance.now();
  await driver.create(folder, planFor(uid), base);
  const milliseconds = performance.now() - began;
  await driver.delete(folder);
  return milliseconds;
}

function planFor(uid: string): VmPlan {
  return {
    guest: {
      diskSizeBytes: undefined,
      iso: undefined,
      vm: {
        apiVersion: MACHINE_API_VERSION,
        vm: { namespace: 'platform-default', name: 'clone', uid },
        attempt: 1,
        architecture: 'amd64',
        imageFormat: 'Raw',
        network: { mode: 'NAT' },
        ports: [],
        automaticPorts: [],
        vnc: { enabled: false },
        readiness: { type: 'None' },
        hardware: { uuid: uid, serialNumber: 'BERTH00001', macAddress: '52:54:00:12:34:56' },
        guestMetadata: {},
        sshAuthorizedKeys: [],
      },
    },
  };
}
