/**
 * Keeps snapshots of one machine's disk, and of its memory on request. A snapshot freezes the file of the disk as a layer, and the guest writes to a new file above it from
 * then on. So a snapshot takes milliseconds and no space at first, whatever the size of the disk. A revert makes a new file above the layer of
 * the snapshot. Layers without a snapshot stay as long as the disk or another layer is above them.
 *
 * The memory of a snapshot is a pair of files beside its layer, as an image has them. The guest is paused while its memory is written as a
 * stream. Another process then makes the files of the stream, without a run of the guest.
 */
import { randomBytes } from 'node:crypto';
import { readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { undefinedIf } from '../../../base/errors.ts';
import { timestamp } from '../../../base/time.ts';
import type { BaseImage, MemoryFiles } from '../../disks/disk.ts';
import { allocatedBytes, readEntries, unlessMissing } from '../../disks/diskio.ts';
import { type DiskSnapshot, type MachineFolder, type MachineState, type VmPlan } from '../driver.ts';
import { UNREADABLE, UnreadableFileError } from '../statefile.ts';
import { DISK_NODE } from './arguments.ts';
import {
  diskBytesOf,
  diskReader,
  giveDisk,
  keepVariables,
  makeOverlay,
  newGeneration,
  remakeFiles,
  sealLayers,
} from './files.ts';
import type { Freezing } from './guestagent.ts';
import { convertStream, makeStreamFolder, whilePaused, writeStream } from './imagememory.ts';
import type { MachineContext } from './launch.ts';
import { commitLayer, mergedLayers, nextMerge } from './layermerge.ts';
import type { QemuMachine } from './machine.ts';
import { requireFrozen, requireMemory, requireSavable } from './memorychecks.ts';
import type { GuestPlatform } from './platform.ts';
import type { QmpConnection } from './qmp.ts';
import { isOverlaid, type Overlay, putOverlay } from './snapshot.ts';
import {
  diskFile,
  type Layer,
  type LayerMemory,
  layersFrom,
  type MachineFile,
  type QemuState,
} from './state.ts';

/** Number of random bytes in the id of a layer. A machine has at most some tens of layers at a time. */
const ID_BYTES = 4;
/** Names of files that {@link MachineLayers} makes, and the first name of a disk. */
const OWN_FILE =
  /^(?:disk(?:-[0-9a-f]{8})?\.qcow2|variables-[0-9a-f]{8}\.fd|memory-[0-9a-f]{8}\.(?:ram|state))$/;
/**
 * Largest number of layers under a disk. There can be more layers than snapshots, because a deleted snapshot's layer stays under the disk. Each
 * layer costs memory of the hypervisor, and a read of old content asks them one after the other.
 */
const DEPTH_LIMIT = 32;

/** Largest number of files in a machine's folder that are counted. Sixteen snapshots have at most some hundreds. */
const FILES_LIMIT = 2_000;

/** The values with which a machine's disk gets a new file. */
type DiskChange = Pick<MachineFile, 'disk' | 'parent' | 'layers'>;

/** How a snapshot is taken. */
interface Taking {
  /** Freezes the guest's file systems. */
  freezing: Freezing;
  signal: AbortSignal;
  /** Set if the memory is saved, too. */
  platform?: GuestPlatform | undefined;
}

/** What a snapshot of a running machine has. */
type Taken = Pick<DiskSnapshot, 'takenAt' | 'consistency'> & { memory?: LayerMemory };

export class MachineLayers {
  readonly #folder: MachineFolder;
  readonly #machine: QemuMachine;
  readonly #context: MachineContext;

  constructor(folder: MachineFolder, machine: QemuMachine, context: MachineContext) {
    this.#folder = folder;
    this.#machine = machine;
    this.#context = context;
  }

  /**
   * Takes a snapshot. If the machine has a complete one with this uid, returns that one. Call this function while nobody else uses the disk.
   *
   * @throws Error with the reason why not. The disk has the same content then.
   */
  async take(uid: string, taking: Taking): Promise<DiskSnapshot> {
    const state = await this.#machine.inspect();
    const file = await this.#machine.state.read();
    const known = file && layerOf(file, uid);
    if (known !== undefined) {
      return snapshotOf(known);
    }
    const { diskBytes, ...rest } = requireDisk(file);
    const { platform, signal } = taking;
    if (platform !== undefined) {
      const platformOf = async () => await Promise.resolve(platform);
      await requireMemory(this.#machine, { platformOf, context: this.#context, signal });
    }
    const id = randomBytes(ID_BYTES).toString('hex');
    const overlay = { file: `disk-${id}.qcow2`, node: `disk-${id}` };
    const layer = { id, file: diskFile(rest), parent: rest.parent, diskBytes };
    await sweepLayers(this.#folder, this.#machine.state);
    const variables = await this.#keepVariables(rest, id);
    const change = {
      disk: overlay.file,
      parent: id,
      layers: [...(rest.layers ?? []), { ...layer, variables }],
    };
    await this.#makeFile({ ...rest, diskBytes, ...change }, layer.file);
    const taken: Taken =
      state.kind === 'running'
        ? await this.#takeRunning(change, overlay, taking)
        : { takenAt: timestamp(Date.now()), consistency: stillConsistency(state) };
    const storageBytes = await this.#allocated(layer.file, taken.memory?.ram, taken.memory?.state);
    const completed = { ...layer, variables, snapshot: { uid, ...taken, storageBytes } };
    await this.#machine.state.change(({ layers = [] }) => ({
      ...(state.kind !== 'running' && change),
      layers: [...layers.filter((other) => other.id !== id), completed],
    }));
    return snapshotOf(completed);
  }

  async #takeRunning(
    change: DiskChange & { parent: string },
    overlay: Overlay,
    { freezing, platform, signal }: Taking,
  ): Promise<Taken> {
    const hypervisor = await this.#machine.required();
    const qmp = await hypervisor.qmp();
    const before = await requireState(this.#machine.state);
    let takenAt = '';
    const { frozen } = await freezing(hypervisor.guestAgent, async (freeze) => {
      const switchDisk = async () => await this.#switchDisk(qmp, change, overlay);
      if (platform === undefined) {
        takenAt = timestamp(Date.now());
        await switchDisk();
        return;
      }
      requireFrozen(freeze);
      takenAt = timestamp(Date.now());
      await this.#withStream(qmp, { file: before, signal }, switchDisk);
    });
    const consistency = frozen ? 'FileSystem' : 'Crash';
    if (platform === undefined) {
      return { takenAt, consistency };
    }
    const files = { ram: `memory-${change.parent}.ram`, state: `memory-${change.parent}.state` };
    const conversion = { file: before, platform, files, signal };
    const memory = await convertStream(this.#folder, conversion, this.#context);
    return { takenAt, consistency, memory: { ...memory, savedAt: takenAt } };
  }

  /** Lets the guest write to the new file from now on. */
  async #switchDisk(
    qmp: QmpConnection,
    change: DiskChange & { parent: string },
    overlay: Overlay,
  ): Promise<void> {
    const { disk, parent, node, nodes } = await requireState(this.#machine.state);
    const file = await this.#machine.state.update({
      ...change,
      node: overlay.node,
      nodes: { ...nodes, [change.parent]: node ?? DISK_NODE },
      switching: { disk, parent, node },
    });
    await putOverlay(qmp, { ...file, node }, overlay);
    await this.#machine.state.update({ switching: undefined });
  }

  /** Pauses the guest, and writes its memory as a stream. The disk changes in the same pause, before the hypervisor gives it up for the stream. */
  async #withStream(
    qmp: QmpConnection,
    { file, signal }: { file: MachineFile; signal: AbortSignal },
    switchDisk: () => Promise<void>,
  ): Promise<void> {
    const { memoryBytes } = requireSavable(file);
    await makeStreamFolder(this.#folder, this.#context);
    const work = async (): Promise<void> => {
      await switchDisk();
      await writeStream(this.#folder, qmp, { memoryBytes, signal });
    };
    await this.#machine.whileSaving(async () => await whilePaused(qmp, this.#machine.state, work));
  }

  /**
   * Replaces the disk of a stopped machine with a new one on the snapshot, or else on the image. All snapshots stay.
   *
   * @throws ReasonedError when there is no such snapshot.
   */
  async revert(
    plan: VmPlan,
    {
      base,
      platform,
      uid,
    }: { base: BaseImage | undefined; platform: GuestPlatform; uid: string | undefined },
  ): Promise<void> {
    const file = await requireState(this.#machine.state);
    const layer = uid === undefined ? undefined : requireSnapshot(file, uid);
    const change = {
      disk: `disk-${randomBytes(ID_BYTES).toString('hex')}.qcow2`,
      parent: layer?.id,
      diskBytes: layer === undefined ? diskBytesOf(plan, base) : layer.diskBytes,
    };
    const next = { ...file, ...change };
    await remakeFiles(this.#folder, next, platform);
    if (plan.runAs !== undefined) {
      await giveDisk(this.#folder.path, plan.runAs, diskFile(next));
    }
    // Only a new disk fits the memory of the image or of the snapshot.
    const memoryOf = layer?.snapshot?.memory === undefined ? undefined : layer.id;
    const fresh = layer === undefined || memoryOf !== undefined ? true : undefined;
    const generation = newGeneration(platform.architecture);
    await this.#machine.state.update({ ...change, fresh, memoryOf, generation, renewing: undefined });
    await sweepLayers(this.#folder, this.#machine.state);
  }

  /** Returns the facts of the snapshot with this uid; undefined if there is none. */
  async find(uid: string): Promise<DiskSnapshot | undefined> {
    const file = await this.#machine.state.read();
    const layer = file && layerOf(file, uid);
    return layer && snapshotOf(layer);
  }

  /**
   * Returns the bytes that all layers and memories of snapshots need, also those that nothing names any more. The file to which the guest writes
   * now is none of them. The result is 0 if nobody can read which file this is.
   */
  async bytes(): Promise<number> {
    const file = await undefinedIf(isUnreadable, this.#machine.state.read());
    if (file === undefined) {
      return 0;
    }
    const names = (await readEntries(this.#folder.path, FILES_LIMIT)).map(({ name }) => name);
    const sizes = names
      .filter((name) => OWN_FILE.test(name) && name !== diskFile(file))
      .map(async (name) => (await unlessMissing(allocatedBytes(join(this.#folder.path, name)))) ?? 0);
    return (await Promise.all(sizes)).reduce((sum, bytes) => sum + bytes, 0);
  }

  /** Removes all snapshots but those with these uids, and the files that nothing needs then. */
  async keepOnly(uids: ReadonlySet<string>): Promise<void> {
    await this.#machine.state.change((file) => ({ layers: neededLayers(file, uids) }));
    await sweepLayers(this.#folder, this.#machine.state);
  }

  /** Returns whether {@link merge} has something to do. */
  async canMerge(): Promise<boolean> {
    const file = await this.#machine.state.read();
    const isLive = (await this.#machine.process()) !== undefined;
    return file !== undefined && nextMerge(file, isLive) !== undefined;
  }

  /** Returns whether no layers are left that a machine without a process can merge. */
  async isMerged(): Promise<boolean> {
    const file = await this.#machine.state.read();
    return file === undefined || nextMerge(file, false) === undefined;
  }

  /** Calls `merge` if the disk has as many layers as it can have. An error is only logged, because the next snapshot is refused then. */
  async makeRoom(merge: () => Promise<unknown>, signal: AbortSignal): Promise<void> {
    const file = await this.#machine.state.read();
    if (file === undefined || layersFrom(file, file.parent).length < DEPTH_LIMIT) {
      return;
    }
    try {
      await merge();
    } catch (error) {
      signal.throwIfAborted();
      const { uid } = this.#folder;
      this.#context.logger.warn({ uid, err: error }, 'Layers under a full disk were not merged');
    }
  }

  /** Merges all layers that need not be apart, and that can be merged now. `mark` is that of programs. Call this function while nobody else uses the disk. */
  async merge(mark: string, signal: AbortSignal): Promise<void> {
    for (;;) {
      const file = await requireState(this.#machine.state);
      const hypervisor = await this.#machine.hypervisor();
      const pair = nextMerge(file, hypervisor !== undefined);
      if (pair === undefined) {
        return;
      }
      signal.throwIfAborted();
      const commit = { file, pair, hypervisor, context: this.#context, mark, signal };
      const node = await commitLayer(this.#folder, commit);
      await this.#machine.state.change((now) => mergedLayers(now, pair, node));
      await sweepLayers(this.#folder, this.#machine.state);
    }
  }

  /** Returns the bytes that these files need on the disk. */
  async #allocated(...names: readonly (string | undefined)[]): Promise<number> {
    const paths = names.filter((name) => name !== undefined).map((name) => join(this.#folder.path, name));
    const sizes = await Promise.all(paths.map(async (path) => await allocatedBytes(path)));
    return sizes.reduce((sum, bytes) => sum + bytes, 0);
  }

  /**
   * Makes the new file of the disk, and gives it to the owner of the present one. This is the machine's user, also if the machine has never
   * started.
   */
  async #makeFile(next: MachineFile, present: string): Promise<void> {
    await makeOverlay(this.#folder, next);
    const runAs = await diskReader(this.#folder.path, { disk: present }, this.#context.isRoot);
    if (runAs !== undefined) {
      await giveDisk(this.#folder.path, runAs, diskFile(next));
    }
  }

  async #keepVariables(
    { architecture }: Pick<MachineFile, 'architecture'>,
    id: string,
  ): Promise<string | undefined> {
    if (architecture !== 'arm64') {
      return undefined;
    }
    const name = `variables-${id}.fd`;
    await keepVariables(this.#folder, name);
    return name;
  }
}

/** Removes files of disks and layers that the state file does not name, for example after the death of the agent. */
export async function sweepLayers({ path }: MachineFolder, state: QemuState): Promise<void> {
  const file = await state.readIfPossible();
  if (file === undefined || file === UNREADABLE) {
    return;
  }
  const named = new Set([
    diskFile(file),
    ...(file.layers ?? []).flatMap(({ file: disk, variables, snapshot }) => [
      disk,
      variables,
      snapshot?.memory?.ram,
      snapshot?.memory?.state,
    ]),
  ]);
  for (const name of await readdir(path)) {
    if (OWN_FILE.test(name) && !named.has(name)) {
      await rm(join(path, name), { force: true });
    }
  }
}

/**
 * Completes or undoes what a snapshot or a merge has left that has ended or lost its agent. Afterwards, nobody can write to a layer. `qmp` is
 * the connection to the machine's process, if it has one. Call this function while no merge is under way.
 */
export async function repairLayers(
  { path }: MachineFolder,
  state: QemuState,
  { qmp, isRoot }: { qmp: QmpConnection | undefined; isRoot: boolean },
): Promise<void> {
  await completeSwitch(state, qmp);
  const file = await state.readIfPossible();
  if (isRoot && file !== undefined && file !== UNREADABLE) {
    await sealLayers(path, file);
  }
}

/** Completes or undoes a change of the disk's file that the agent had begun when it died, or that has failed. */
async function completeSwitch(state: QemuState, qmp: QmpConnection | undefined): Promise<void> {
  const file = await state.readIfPossible();
  if (file === UNREADABLE || file?.switching === undefined) {
    return;
  }
  const { switching, node = '', parent, layers = [] } = file;
  const isDone = qmp === undefined || (await isOverlaid(qmp, switching, node));
  await state.update(
    isDone
      ? { switching: undefined }
      : {
          disk: switching.disk,
          parent: switching.parent,
          node: switching.node,
          layers: layers.filter(({ id }) => id !== parent),
          switching: undefined,
        },
  );
}

/** Returns the layer of a snapshot. @throws ReasonedError when the machine has no such snapshot. */
export function requireSnapshot(file: Pick<MachineFile, 'layers'>, uid: string): Layer {
  const layer = layerOf(file, uid);
  if (layer === undefined) {
    throw new ReasonedError('SnapshotNotFound', 'The host does not have the snapshot');
  }
  return layer;
}

/**
 * Returns the layers that stay when only the snapshots with these uids do: theirs, and those under them and under the disk.
 */
export function neededLayers(
  file: Pick<MachineFile, 'layers' | 'parent'>,
  uids: ReadonlySet<string>,
): Layer[] {
  const { layers = [], parent } = file;
  const kept = layers.filter(({ snapshot }) => snapshot !== undefined && uids.has(snapshot.uid));
  const needed = new Set([parent, ...kept.map(({ id }) => id)].flatMap((id) => layersFrom(file, id)));
  return layers
    .filter((layer) => needed.has(layer))
    .map(({ snapshot, ...layer }) =>
      snapshot !== undefined && uids.has(snapshot.uid) ? { ...layer, snapshot } : layer,
    );
}

function layerOf({ layers = [] }: Pick<MachineFile, 'layers'>, uid: string): Layer | undefined {
  return layers.find(({ snapshot }) => snapshot?.uid === uid);
}

function snapshotOf({ snapshot, diskBytes }: Layer): DiskSnapshot {
  const { takenAt, consistency, storageBytes, memory } = requireValue(snapshot);
  return {
    takenAt,
    consistency,
    sizeBytes: diskBytes,
    storageBytes,
    ...(memory && { memory: { cpu: memory.cpu, bytes: memory.memoryBytes } }),
  };
}

/**
 * Returns the memory of the snapshot to which the disk was reset. Later snapshots can be between both. The result is undefined if it had no
 * memory, or if the snapshot was deleted since.
 */
export function snapshotMemory(
  { path }: MachineFolder,
  { layers = [], memoryOf }: Pick<MachineFile, 'layers' | 'memoryOf'>,
): MemoryFiles | undefined {
  const memory = layers.find(({ id }) => id === memoryOf)?.snapshot?.memory;
  return memory && { ...memory, ram: join(path, memory.ram), state: join(path, memory.state) };
}

function isUnreadable(error: unknown): boolean {
  return error instanceof UnreadableFileError;
}

function requireValue<T>(value: T | undefined): T {
  if (value === undefined) {
    throw new TypeError('The layer has no snapshot');
  }
  return value;
}

async function requireState(state: QemuState): Promise<MachineFile> {
  return requireMachine(await state.read());
}

function requireMachine(file: MachineFile | undefined): MachineFile {
  if (file === undefined) {
    throw new ReasonedError('NoMachine', 'The machine is not on the host');
  }
  return file;
}

/** Returns the state of a machine whose disk can get another layer. @throws ReasonedError when it cannot. */
function requireDisk(file: MachineFile | undefined): MachineFile & { diskBytes: number } {
  const { diskBytes, ...rest } = requireMachine(file);
  if (diskBytes === undefined) {
    throw new ReasonedError('NoDisk', 'The machine has no disk');
  }
  if (layersFrom(rest, rest.parent).length >= DEPTH_LIMIT) {
    // At most 120 characters of this message reach the VMSnapshot.
    throw new ReasonedError(
      'TooManySnapshots',
      `The disk has ${DEPTH_LIMIT} layers of snapshots. Save the VM as an Image and make a new one, or reset it`,
    );
  }
  return { ...rest, diskBytes };
}

/** Returns the state of the file systems on the disk of a machine that does not run. */
function stillConsistency(state: MachineState): DiskSnapshot['consistency'] {
  const lostPower = state.kind === 'suspended' || (state.kind === 'exited' && state.reason === 'Crashed');
  return lostPower ? 'Crash' : 'Stopped';
}
