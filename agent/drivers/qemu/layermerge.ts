/**
 * Merges layers under a machine's disk that need not be apart. A layer without a snapshot takes the content of the layer above it, if only this
 * one is above it. Without merges, each deleted snapshot and each failed one would leave a layer for the life of the disk.
 *
 * The upper file stays as it is until the lower one has all of its content. The upper file hides what is written to the lower one, so a disk shows
 * the same content at each step. Therefore the agent can die at any step, and the next merge begins anew.
 */
import { join } from 'node:path';
import * as z from 'zod';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { undefinedIf } from '../../../base/errors.ts';
import type { RunAs } from '../../../base/exec.ts';
import { sync } from '../../../base/files.ts';
import { pause } from '../../../base/time.ts';
import { allocatedBytes } from '../../disks/diskio.ts';
import { freeDisk } from '../../disks/freedisk.ts';
import { commitDisk } from '../../disks/qemuimg.ts';
import type { MachineFolder } from '../driver.ts';
import { DISK_NODE, diskNode, layerNodeName } from './arguments.ts';
import { diskReader, giveDisk, requireOwnDisk } from './files.ts';
import type { Hypervisor } from './hypervisor.ts';
import type { MachineContext } from './launch.ts';
import { beginningOf, type QmpConnection, QmpError } from './qmp.ts';
import { type Layer, layersFrom, type MachineFile } from './state.ts';

/** QEMU's name of the job that merges two layers. */
const JOB = 'merge';
const JOB_INTERVAL_MILLISECONDS = 20;
/** Time limit of the end of a cancelled job. It ends after the request to the disk that is under way. */
const JOB_END_TIMEOUT_MILLISECONDS = 10_000;

const jobsSchema = beginningOf(
  z.object({ id: z.string(), status: z.string(), error: z.string().optional() }),
);
const filesSchema = beginningOf(
  z.object({ 'node-name': z.string().optional(), file: z.string().optional(), ro: z.boolean().optional() }),
);
type BlockNodes = z.infer<typeof filesSchema>;

/** Two layers that can become one. The result has the place and the file of the lower one, and all else of the upper one. */
export interface LayerPair {
  lower: Layer;
  upper: Layer;
}

/**
 * Returns two layers that can become one; undefined if there are none. The layer under the disk stays, because the guest writes to the file above it.
 *
 * If the machine has a process (`isLive`), only layers under its disk can. Another program would have to merge the other ones, and the machine's
 * user could change their headers behind the check of them. They are merged while the machine is off.
 */
export function nextMerge(
  { layers = [], parent }: Pick<MachineFile, 'layers' | 'parent'>,
  isLive: boolean,
): LayerPair | undefined {
  const reached = isLive ? layersFrom({ layers }, parent) : layers;
  const needless = layers.filter(({ id, snapshot }) => snapshot === undefined && id !== parent);
  for (const lower of needless.filter((one) => reached.includes(one))) {
    const [upper, ...others] = layers.filter((one) => one.parent === lower.id);
    if (upper !== undefined && others.length === 0) {
      return { lower, upper };
    }
  }
  return undefined;
}

/** Returns the change of the state file for two layers whose content is in the lower file. `node` is QEMU's node with this file, if it has one. */
export function mergedLayers(
  { layers = [], nodes }: Pick<MachineFile, 'layers' | 'nodes'>,
  { lower, upper }: LayerPair,
  node: string | undefined,
): Pick<MachineFile, 'layers' | 'nodes'> {
  const merged = { ...upper, file: lower.file, parent: lower.parent };
  return {
    layers: layers.filter(({ id }) => id !== lower.id).map((one) => (one.id === upper.id ? merged : one)),
    ...(node !== undefined && { nodes: { ...nodes, [upper.id]: node } }),
  };
}

interface Commit {
  file: MachineFile;
  pair: LayerPair;
  /** The machine's process; undefined if it has none. */
  hypervisor: Hypervisor | undefined;
  context: Pick<MachineContext, 'isRoot' | 'readers' | 'minimumFree'>;
  /** Mark of the program that works without a hypervisor. */
  mark: string;
  signal: AbortSignal;
}

/**
 * Writes the content of the upper layer to the file of the lower one. Returns the name of QEMU's node with this file; undefined if the machine has
 * no process.
 *
 * @throws ReasonedError `DiskFull` when there is no room for the content a second time; the signal's reason when the signal aborts.
 */
export async function commitLayer(folder: MachineFolder, commit: Commit): Promise<string | undefined> {
  const { file, pair, hypervisor, context, signal } = commit;
  const { lower, upper } = pair;
  const needed = await allocatedBytes(join(folder.path, upper.file));
  if ((await freeDisk(folder.path)).bytes - context.minimumFree < needed) {
    const message = `A merge of two layers needs ${needed} bytes of disk in addition to images.minimumFree`;
    throw new ReasonedError('DiskFull', message);
  }
  const owner = await diskReader(folder.path, file, context.isRoot);
  await (owner && openLayers(folder, owner, commit));
  const node =
    hypervisor === undefined
      ? await commitStill(folder, commit, owner)
      : await commitRunning(await hypervisor.qmp(), file, { pair, signal });
  // The upper file is removed next, so its content must be in the lower one also after a loss of power.
  await sync(join(folder.path, lower.file));
  return node;
}

/**
 * Makes the machine's user the owner of the layers that a program opens for writing during the merge. One is the lower layer. QEMU also changes
 * the name of the backing file in the header of the layer above both, and its version 7.2 crashes if it cannot. qemu-img opens the upper layer
 * for writing, too. The cleanup after the merge takes the layers back.
 */
async function openLayers(
  { path }: MachineFolder,
  owner: RunAs,
  { file, pair: { lower, upper }, hypervisor }: Commit,
): Promise<void> {
  const above = layersFrom(file, file.parent).filter(({ parent }) => parent === upper.id);
  for (const layer of [lower, ...(hypervisor === undefined ? [upper] : above)]) {
    await giveDisk(path, owner, layer.file);
  }
}

/** Merges layers of a machine without a process. */
async function commitStill(
  { path }: MachineFolder,
  { file, pair: { upper }, context, mark, signal }: Commit,
  owner: RunAs | undefined,
): Promise<undefined> {
  const state = { ...file, disk: upper.file, parent: upper.parent };
  await requireOwnDisk(path, state);
  const as = owner && { ...owner, gid: context.readers ?? owner.gid };
  await commitDisk(diskNode(state), { folder: path, mark, as, signal });
}

async function commitRunning(
  qmp: QmpConnection,
  file: MachineFile,
  { pair: { lower, upper }, signal }: Pick<Commit, 'pair' | 'signal'>,
): Promise<string> {
  const { nodes = {}, node: root = DISK_NODE } = file;
  const [top, base] = [upper, lower].map(({ id }) => nodes[id] ?? layerNodeName(id)) as [string, string];
  if (top === root) {
    throw new Error('The guest writes to the upper layer');
  }
  // QEMU drops the upper file when it has merged both. The agent can have died behind that.
  if (hasFile(await blockNodes(qmp), upper) && !(await dropNode(qmp, top))) {
    await qmp.execute('block-commit', {
      'job-id': JOB,
      device: root,
      'top-node': top,
      'base-node': base,
      'backing-file': lower.file,
      'auto-dismiss': false,
    });
    await untilMerged(qmp, signal);
    await dropNode(qmp, top);
  }
  await requireMerged(qmp, { lower, upper }, base);
  return base;
}

/**
 * Checks that the lower file has the content of both layers. QEMU writes the last of it when it makes the file's node `base` read-only again, and
 * does not tell if it cannot. @throws Error when the lower file perhaps lacks content. The layers then stay two.
 */
async function requireMerged(qmp: QmpConnection, { lower, upper }: LayerPair, base: string): Promise<void> {
  const nodes = await blockNodes(qmp);
  if (hasFile(nodes, upper)) {
    throw new Error('QEMU still uses the upper layer');
  }
  const found = nodes.find((node) => node['node-name'] === base);
  // The text is the file's name, or a JSON that contains it if the header of the file names another backing file.
  if (found?.ro !== true || found.file?.includes(lower.file) !== true) {
    throw new Error('QEMU does not show the lower layer as one that is complete');
  }
}

async function untilMerged(qmp: QmpConnection, signal: AbortSignal): Promise<void> {
  for (;;) {
    const job = await findJob(qmp);
    if (job === undefined) {
      throw new Error('QEMU does not know the merge of two layers any more');
    }
    if (job.status === 'concluded') {
      await qmp.execute('job-dismiss', { id: JOB });
      if (job.error !== undefined) {
        throw new QmpError(job.error);
      }
      return;
    }
    await pause(JOB_INTERVAL_MILLISECONDS, signal);
  }
}

/** Ends a merge that is under way, or that nobody has waited for. The layers then stay two, or the next merge finds that they are one. */
export async function endMerge(qmp: QmpConnection): Promise<void> {
  const deadline = performance.now() + JOB_END_TIMEOUT_MILLISECONDS;
  for (;;) {
    const job = await findJob(qmp);
    if (job === undefined) {
      return;
    }
    if (job.status === 'concluded') {
      await qmp.execute('job-dismiss', { id: JOB });
      return;
    }
    if (performance.now() >= deadline) {
      throw new Error('QEMU did not end a merge of two layers in time');
    }
    // The job can end by itself at this moment, and cannot be cancelled then.
    await undefinedIf(isQmpError, qmp.execute('job-cancel', { id: JOB }));
    await pause(JOB_INTERVAL_MILLISECONDS);
  }
}

async function findJob(qmp: QmpConnection): Promise<z.infer<typeof jobsSchema>[number] | undefined> {
  return (await qmp.ask('query-jobs', jobsSchema)).find(({ id }) => id === JOB);
}

/** Returns QEMU's nodes of files and of their formats. */
async function blockNodes(qmp: QmpConnection): Promise<BlockNodes> {
  return await qmp.ask('query-named-block-nodes', filesSchema, { flat: true });
}

function hasFile(nodes: BlockNodes, { file }: Layer): boolean {
  return nodes.some((node) => node.file === file);
}

/** Removes a node that nothing uses. Returns false if QEMU refuses it, because the node is in use. */
async function dropNode(qmp: QmpConnection, node: string): Promise<boolean> {
  const dropped = qmp.execute('blockdev-del', { 'node-name': node }).then(() => true);
  return (await undefinedIf(isQmpError, dropped)) ?? false;
}

function isQmpError(error: unknown): boolean {
  return error instanceof QmpError;
}
