/**
 * Keeps snapshots of one machine's disk. A snapshot freezes the file of the disk as a layer, and the guest writes to a new file above it from
 * then on. So a snapshot takes milliseconds and no space at first, whatever the size of the disk. A revert makes a new file above the layer of
 * the snapshot. Layers without a snapshot stay as long as the disk or another layer is above them.
 */
import { randomBytes } from 'node:crypto';
import { readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { timestamp } from '../../../base/time.ts';
import type { BaseImage } from '../../disks/disk.ts';
import { allocatedBytes } from '../../disks/diskio.ts';
import { processUser } from '../../processes/users.ts';
import type { DiskSnapshot, MachineFolder, MachineState, VmPlan } from '../driver.ts';
import { UNREADABLE } from '../statefile.ts';
import { diskBytesOf, giveDisk, keepVariables, makeOverlay, newGeneration, remakeFiles } from './files.ts';
import type { Freezing } from './guestagent.ts';
import type { MachineContext } from './launch.ts';
import type { QemuMachine } from './machine.ts';
import type { GuestPlatform } from './platform.ts';
import type { QmpConnection } from './qmp.ts';
import { isOverlaid, type Overlay, putOverlay } from './snapshot.ts';
import { diskFile, type Layer, layersFrom, type MachineFile, type QemuState } from './state.ts';

/** Number of random bytes in the id of a layer. A machine has at most some tens of layers at a time. */
const ID_BYTES = 4;
/** Names of files that {@link MachineLayers} makes, and the first name of a disk. */
const OWN_FILE = /^(?:disk(?:-[0-9a-f]{8})?\.qcow2|variables-[0-9a-f]{8}\.fd)$/;
/**
 * Largest number of layers under a disk. There can be more layers than snapshots, because a deleted snapshot's layer stays under the disk. Each
 * layer costs memory of the hypervisor, and a read of old content asks them one after the other.
 */
const DEPTH_LIMIT = 32;

/** The values with which a machine's disk gets a new file. */
type DiskChange = Pick<MachineFile, 'disk' | 'parent' | 'layers'>;

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
   * `freezing` freezes the guest's file systems.
   *
   * @throws Error with the reason why not. The disk is then as before.
   */
  async take(uid: string, freezing: Freezing): Promise<DiskSnapshot> {
    const state = await this.#machine.inspect();
    const file = await this.#machine.state.read();
    const known = file && layerOf(file, uid);
    if (known !== undefined) {
      return snapshotOf(known);
    }
    const { diskBytes, ...rest } = requireDisk(file);
    const id = randomBytes(ID_BYTES).toString('hex');
    const overlay = { file: `disk-${id}.qcow2`, node: `disk-${id}` };
    const layer = { id, file: diskFile(rest), parent: rest.parent, diskBytes };
    await this.#sweep();
    const variables = await this.#keepVariables(rest, id);
    const change = {
      disk: overlay.file,
      parent: id,
      layers: [...(rest.layers ?? []), { ...layer, variables }],
    };
    await this.#makeFile({ ...rest, diskBytes, ...change });
    const taken =
      state.kind === 'running'
        ? await this.#takeRunning(change, overlay, freezing)
        : { takenAt: timestamp(Date.now()), consistency: stillConsistency(state) };
    const storageBytes = await allocatedBytes(join(this.#folder.path, layer.file));
    const completed = { ...layer, variables, snapshot: { uid, ...taken, storageBytes } };
    await this.#machine.state.change(({ layers = [] }) => ({
      ...(state.kind !== 'running' && change),
      layers: [...layers.filter((other) => other.id !== id), completed],
    }));
    return snapshotOf(completed);
  }

  async #takeRunning(
    change: DiskChange,
    overlay: Overlay,
    freezing: Freezing,
  ): Promise<Pick<DiskSnapshot, 'takenAt' | 'consistency'>> {
    const hypervisor = await this.#machine.required();
    const qmp = await hypervisor.qmp();
    let takenAt = '';
    const { frozen } = await freezing(hypervisor.guestAgent, async () => {
      takenAt = timestamp(Date.now());
      const { disk, parent, node } = await requireState(this.#machine.state);
      const file = await this.#machine.state.update({
        ...change,
        node: overlay.node,
        switching: { disk, parent, node },
      });
      await putOverlay(qmp, { ...file, node }, overlay);
      await this.#machine.state.update({ switching: undefined });
    });
    return { takenAt, consistency: frozen ? 'FileSystem' : 'Crash' };
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
    // Only a new disk of the image fits the memory of the image.
    const fresh = layer === undefined ? true : undefined;
    const generation = newGeneration(platform.architecture);
    await this.#machine.state.update({ ...change, fresh, generation, renewing: undefined });
    await this.#sweep();
  }

  /** Removes all snapshots but those with these uids, and the files that nothing needs then. */
  async keepOnly(uids: ReadonlySet<string>): Promise<void> {
    await this.#machine.state.change((file) => ({ layers: neededLayers(file, uids) }));
    await this.#sweep();
  }

  /** Makes the new file of the disk, and gives it to the machine's user, whose hypervisor opens it. */
  async #makeFile(next: MachineFile): Promise<void> {
    await makeOverlay(this.#folder, next);
    const runAs = processUser(this.#context.isRoot, next.launched?.runAs);
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

  /** Removes files of disks and layers that the state file does not name, for example after the death of the agent. */
  async #sweep(): Promise<void> {
    const { path } = this.#folder;
    const file = await requireState(this.#machine.state);
    const named = new Set([
      diskFile(file),
      ...(file.layers ?? []).flatMap((layer) => [layer.file, layer.variables]),
    ]);
    for (const name of await readdir(path)) {
      if (OWN_FILE.test(name) && !named.has(name)) {
        await rm(join(path, name), { force: true });
      }
    }
  }
}

/**
 * Completes or undoes a change of the disk's file that the agent had begun when it died, or that has failed. `qmp` is the connection to the
 * machine's process, if it has one.
 */
export async function completeSwitch(state: QemuState, qmp: QmpConnection | undefined): Promise<void> {
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
  const { takenAt, consistency, storageBytes } = requireValue(snapshot);
  return { takenAt, consistency, sizeBytes: diskBytes, storageBytes };
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
    throw new ReasonedError(
      'TooManySnapshots',
      `The disk has ${DEPTH_LIMIT} layers of this and earlier snapshots. Revert the VM to make it smaller`,
    );
  }
  return { ...rest, diskBytes };
}

/** Returns the state of the file systems on the disk of a machine that does not run. */
function stillConsistency(state: MachineState): DiskSnapshot['consistency'] {
  const lostPower = state.kind === 'suspended' || (state.kind === 'exited' && state.reason === 'Crashed');
  return lostPower ? 'Crash' : 'Stopped';
}
