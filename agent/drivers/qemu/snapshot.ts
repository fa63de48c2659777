/**
 * Makes a snapshot of a running machine's disk. The snapshot has the content of the disk at one moment, and can be read while the guest
 * continues to write. The agent inserts a filter between the guest's drive and its disk. Before the guest overwrites old content, the
 * filter saves this content in a second file. QEMU serves the snapshot from both files over a socket.
 *
 * The agent does not use a backup job of QEMU, for two reasons. If the file system of the second file is full, a backup job makes the
 * guest's own write fail. With the filter, only the snapshot becomes unreadable in this case, and the guest continues. A backup job also
 * loses the holes of the disk, but the filter keeps them.
 */
import { chown, mkdir, open, rm, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { hasCode, isMissing, undefinedIf } from '../../../base/errors.ts';
import type { RunAs } from '../../../base/exec.ts';
import { removeTrees } from '../../../base/files.ts';
import { pause } from '../../../base/time.ts';
import { DISK_NODE, overlayNode } from './arguments.ts';
import { beginningOf, type QmpConnection, QmpError } from './qmp.ts';
import type { MachineFile } from './state.ts';

/**
 * Name of the snapshot's folder in the machine's folder. The hypervisor is not root, and has the right to create files only in this folder.
 */
const FOLDER = 'copy';
const OLD = join(FOLDER, 'old.raw');
const SOCKET = join(FOLDER, 'nbd.sock');

const OLD_NODE = 'copy-old';
const FILTER_NODE = 'copy-filter';
const VIEW_NODE = 'copy-view';
const EXPORT = 'copy';

/**
 * Time limit for the filter to save old content before the guest overwrites it. The write of the guest waits meanwhile. The limit is below
 * 60 s, because some guests treat their disk as broken if a write takes 60 s.
 */
const WRITE_TIMEOUT_SECONDS = 30;
/**
 * Time limit for the end of the snapshot's NBD export. The export ends when the requests that have already begun are answered. Each of
 * these requests needs one disk access.
 */
const EXPORT_END_TIMEOUT_MILLISECONDS = 10_000;
const EXPORT_END_INTERVAL_MILLISECONDS = 10;

/** Returns whether a removal failed because the snapshot's folder contains entries that do not belong to the snapshot. */
const isForeign = hasCode('ENOTEMPTY', 'EEXIST', 'ERR_FS_EISDIR');

const blockNodesSchema = beginningOf(z.object({ 'node-name': z.string().optional() }));
const drivesSchema = beginningOf(
  z.object({
    qdev: z.string().optional(),
    inserted: z
      .object({
        'node-name': z.string().optional(),
        image: z.object({ 'virtual-size': z.number().int().min(0) }),
      })
      .optional(),
  }),
);
const exportsSchema = beginningOf(z.object({ id: z.string() }));

interface Drive {
  /** Path of the drive's device in QEMU's object tree. */
  path: string;
  node: string;
  sizeBytes: number;
}

/** Returns the name of QEMU's block node with the disk of a machine. */
function diskNodeName({ node }: Pick<MachineFile, 'node'>): string {
  return node ?? DISK_NODE;
}

/**
 * Does all slow steps of a snapshot in advance. The snapshot will show the disk as it is when {@link takeSnapshot} is called. `afterStream`
 * says that the guest is paused, and QEMU has just written its memory as a stream.
 */
export async function prepareSnapshot(
  qmp: QmpConnection,
  folder: string,
  {
    file,
    runAs,
    afterStream = false,
  }: { file: MachineFile; runAs: RunAs | undefined; afterStream?: boolean },
): Promise<Drive> {
  const disk = diskNodeName(file);
  const drive = await requireDrive(qmp, disk);
  await makeFiles(folder, drive.sizeBytes, runAs);
  if (afterStream) {
    await activateDisk(qmp, disk);
  }
  await qmp.execute('blockdev-add', {
    'node-name': OLD_NODE,
    driver: 'raw',
    file: { driver: 'file', filename: OLD },
  });
  await qmp.execute('blockdev-add', {
    'node-name': FILTER_NODE,
    driver: 'copy-before-write',
    file: disk,
    target: OLD_NODE,
    'on-cbw-error': 'break-snapshot',
    'cbw-timeout': WRITE_TIMEOUT_SECONDS,
  });
  return drive;
}

/**
 * Makes QEMU use the disk again. After a stream, QEMU treats its disks as those of another process until the guest continues, and refuses
 * the filter. A stream with the filter in place is refused, too. An export of the disk is the command that ends this state.
 */
async function activateDisk(qmp: QmpConnection, disk: string): Promise<void> {
  await qmp.execute('nbd-server-start', { addr: { type: 'unix', data: { path: SOCKET } } });
  await qmp.execute('block-export-add', { type: 'nbd', id: EXPORT, 'node-name': disk, name: EXPORT });
  await endExport(qmp);
}

/** Inserts the filter, which takes a millisecond. The snapshot shows the disk as it is at this moment. */
export async function takeSnapshot(qmp: QmpConnection, drive: Drive): Promise<void> {
  await attach(qmp, drive, FILTER_NODE);
}

/**
 * Serves the snapshot on a socket. Returns the description of a block node, through which QEMU's own programs read the snapshot. These
 * programs must run in the machine's folder, because the path of the socket is relative to this folder.
 */
export async function serveSnapshot(qmp: QmpConnection): Promise<Record<string, unknown>> {
  await qmp.execute('blockdev-add', {
    'node-name': VIEW_NODE,
    driver: 'snapshot-access',
    file: FILTER_NODE,
  });
  await qmp.execute('nbd-server-start', { addr: { type: 'unix', data: { path: SOCKET } } });
  await qmp.execute('block-export-add', { type: 'nbd', id: EXPORT, 'node-name': VIEW_NODE, name: EXPORT });
  const server = { type: 'unix', path: SOCKET };
  return { driver: 'raw', file: { driver: 'nbd', export: EXPORT, server } };
}

/** Connects the guest's drive to its disk again, and removes all parts of the snapshot, even if the snapshot is incomplete. */
export async function dropSnapshot(qmp: QmpConnection, file: Pick<MachineFile, 'node'> = {}): Promise<void> {
  await endExport(qmp);
  const nodes = await nodeNames(qmp);
  if (nodes.has(VIEW_NODE)) {
    await qmp.execute('blockdev-del', { 'node-name': VIEW_NODE });
  }
  const disk = diskNodeName(file);
  const drive = await requireDrive(qmp, disk);
  if (drive.node === FILTER_NODE) {
    await attach(qmp, drive, disk);
  }
  for (const node of [FILTER_NODE, OLD_NODE]) {
    if (nodes.has(node)) {
      await qmp.execute('blockdev-del', { 'node-name': node });
    }
  }
}

/**
 * Removes the snapshot's folder, and returns whether it is removed. A hostile hypervisor can put any files into the folder. While the
 * hypervisor lives (`isLive`), only the snapshot's own files are removed, by their names. A removal of all files might never end, because
 * the hypervisor can add new files meanwhile. The folder stays if it has other files. If the hypervisor has ended, all files are removed.
 * The function follows no links.
 *
 * @throws Error when a file cannot be removed.
 */
export async function removeSnapshotFiles(folder: string, isLive: boolean): Promise<boolean> {
  if (!isLive) {
    await removeTrees([join(folder, FOLDER)]);
    return true;
  }
  try {
    for (const name of [OLD, SOCKET]) {
      await rm(join(folder, name), { force: true });
    }
    await undefinedIf(isMissing, rmdir(join(folder, FOLDER)));
    return true;
  } catch (error) {
    if (isForeign(error)) {
      return false;
    }
    throw error;
  }
}

async function makeFiles(folder: string, sizeBytes: number, runAs: RunAs | undefined): Promise<void> {
  if (!(await removeSnapshotFiles(folder, true))) {
    throw new Error(
      `The hypervisor has put other files into the folder "${FOLDER}", which is only for snapshots`,
    );
  }
  await mkdir(join(folder, FOLDER), { mode: 0o700 });
  const old = await open(join(folder, OLD), 'wx', 0o600);
  try {
    await old.truncate(sizeBytes);
    if (runAs !== undefined) {
      await old.chown(runAs.uid, runAs.gid);
    }
  } finally {
    await old.close();
  }
  if (runAs !== undefined) {
    await chown(join(folder, FOLDER), runAs.uid, runAs.gid);
  }
}

/**
 * Makes the guest write to a new file, which exists in the machine's folder and is empty. The present file of the disk gets no more writes.
 * This takes a millisecond, and the guest does not stop.
 */
export async function putOverlay(qmp: QmpConnection, file: MachineFile, overlay: Overlay): Promise<void> {
  const drive = await requireDrive(qmp, diskNodeName(file));
  await qmp.execute('blockdev-add', overlayNode(overlay.node, overlay.file));
  await qmp.execute('blockdev-snapshot', { node: drive.node, overlay: overlay.node });
}

/** A new file of the disk, and the name of QEMU's block node with it. */
export interface Overlay {
  node: string;
  file: string;
}

/**
 * Returns whether the guest writes to the disk with this node already. If not, removes the node, so that {@link putOverlay} can be tried
 * again.
 */
export async function isOverlaid(
  qmp: QmpConnection,
  before: Pick<MachineFile, 'node'>,
  node: string,
): Promise<boolean> {
  const drives = await qmp.ask('query-block', drivesSchema);
  if (drives.some(({ inserted }) => inserted?.['node-name'] === node)) {
    return true;
  }
  await requireDrive(qmp, diskNodeName(before));
  if ((await nodeNames(qmp)).has(node)) {
    await qmp.execute('blockdev-del', { 'node-name': node });
  }
  return false;
}

async function nodeNames(qmp: QmpConnection): Promise<ReadonlySet<string | undefined>> {
  const known = await qmp.ask('query-named-block-nodes', blockNodesSchema, { flat: true });
  return new Set(known.map((node) => node['node-name']));
}

async function requireDrive(qmp: QmpConnection, disk: string): Promise<Drive> {
  const drives = await qmp.ask('query-block', drivesSchema);
  for (const { qdev, inserted } of drives) {
    const node = inserted?.['node-name'];
    if (qdev === undefined || inserted === undefined) {
      continue;
    }
    if (node === disk || node === FILTER_NODE) {
      return { path: qdev, node, sizeBytes: inserted.image['virtual-size'] };
    }
  }
  throw new Error('QEMU has no drive with the disk of the machine');
}

async function attach(qmp: QmpConnection, drive: Drive, node: string): Promise<void> {
  await qmp.execute('qom-set', { path: drive.path, property: 'drive', value: node });
}

async function endExport(qmp: QmpConnection): Promise<void> {
  if (await isExported(qmp)) {
    await qmp.execute('block-export-del', { id: EXPORT, mode: 'hard' });
  }
  const deadline = performance.now() + EXPORT_END_TIMEOUT_MILLISECONDS;
  while (await isExported(qmp)) {
    if (performance.now() >= deadline) {
      throw new Error('QEMU did not end the export of the snapshot in time');
    }
    await pause(EXPORT_END_INTERVAL_MILLISECONDS);
  }
  // QEMU has no command that shows whether its NBD server runs. So the agent always sends the command to stop the server, and ignores
  // QEMU's error if the server does not run.
  const isNone = (error: unknown): boolean =>
    error instanceof QmpError && error.message.includes('not running');
  await undefinedIf(isNone, qmp.execute('nbd-server-stop'));
}

async function isExported(qmp: QmpConnection): Promise<boolean> {
  const exports = await qmp.ask('query-block-exports', exportsSchema);
  return exports.some(({ id }) => id === EXPORT);
}
