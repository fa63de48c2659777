/** Reads and writes two files in the folder of a QEMU machine: its state file, and the note about a copy of the disk. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import * as z from 'zod';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { listFolders, writeWhole } from '../../../base/files.ts';
import { type FoundMachine, MEMORY_WORK } from '../driver.ts';
import {
  endSchema,
  processSchema,
  readParsed,
  runAsSchema,
  StateFile as AnyStateFile,
  stateOfFound,
  UnreadableFileError,
} from '../statefile.ts';

/**
 * Names of the files in a machine's folder. The hypervisor binds its sockets relative to the folder, because the whole path of a socket can
 * have at most 107 bytes.
 */
export const FILES = {
  state: 'state.json',
  /** Note about a copy of the disk. Only the agent may write this note, because the agent removes the file that the note names. */
  copyNote: 'copy.json',
  disk: 'disk.qcow2',
  /** Disk of the clone in which the memory of an image is prepared. It becomes the disk of the image. */
  rawDisk: 'disk.raw',
  /** Variables of the firmware (UEFI). */
  variables: 'variables.fd',
  qmp: 'qmp.sock',
  guestAgent: 'ga.sock',
  vnc: 'vnc.sock',
  /** Second QMP socket, over which the agent connects to the D-Bus display. */
  display: 'display.sock',
  migration: 'migration.sock',
  /** Saved memory and device states of a suspended machine. */
  memory: 'memory',
  /** Folder for the memory of an image that is being saved from the machine. */
  imageMemory: MEMORY_WORK,
  /** Picture of the screen, while the agent makes it. */
  picture: 'screen.png',
} as const;

const sizeSchema = z.object({ width: z.number().int(), height: z.number().int() });

const screenSchema = z.object({
  /** QEMU's name of the graphics card; absent for a machine without a card. A resumed machine must have the same card. */
  card: z.enum(['VGA', 'virtio-vga', 'virtio-gpu-pci']).optional(),
  /** Size in pixels and DPI that the VM asks for; absent if the VM asks for no display. */
  display: sizeSchema.extend({ dpi: z.number().int() }).optional(),
  /** Whether the process has a D-Bus display, over which the agent sets the DPI. */
  dbus: z.boolean(),
  /** Size in pixels that VNC shows, if it is less than the size of the display. */
  cropped: sizeSchema.optional(),
});
export type Screen = z.infer<typeof screenSchema>;

/**
 * A layer under the disk of a machine: a file to which nobody writes any more. A snapshot freezes the present file of the disk as a layer. The
 * layers are a tree, because a machine that was reverted to a snapshot makes its next layer above that snapshot.
 */
const layerSchema = z.object({
  id: z.string(),
  /** Name of the file in the machine's folder. */
  file: z.string(),
  /** Id of the layer below. Absent if the layer is directly on the image. */
  parent: z.string().optional(),
  /** Size of the disk in bytes when the layer was frozen. */
  diskBytes: z.number().int(),
  /** File with the variables of the firmware at that moment. Absent for a machine whose firmware has none. */
  variables: z.string().optional(),
  /** The snapshot that the layer shows. Absent if the layer is only needed by others, or if its snapshot was not completed. */
  snapshot: z
    .object({
      uid: z.string(),
      takenAt: z.iso.datetime(),
      consistency: z.enum(['FileSystem', 'Crash', 'Stopped']),
      storageBytes: z.number().int(),
      /** The memory of the same moment. `ram` and `state` are the names of its files in the machine's folder. */
      memory: z
        .object({
          ram: z.string(),
          state: z.string(),
          cpu: z.number().int(),
          memoryBytes: z.number().int(),
          key: z.string(),
          savedAt: z.string(),
        })
        .optional(),
    })
    .optional(),
});
export type LayerMemory = NonNullable<NonNullable<Layer['snapshot']>['memory']>;
export type Layer = z.infer<typeof layerSchema>;

const stateSchema = z.object({
  version: z.literal(1),
  architecture: z.enum(['amd64', 'arm64']),
  /**
   * QEMU's machine type, which never changes during the machine's life. After an upgrade of the host, the guest must find the same
   * mainboard.
   */
  machineType: z.string(),
  base: z.object({ path: z.string(), format: z.enum(['qcow2', 'raw']) }).optional(),
  /** Size of the disk in bytes; absent for a machine without a disk. */
  diskBytes: z.number().int().optional(),
  /** Whether the disk is a raw file. Only the clone of a machine has such a disk. */
  isRaw: z.boolean().optional(),
  /** File to which the guest writes, in the machine's folder. `disk.qcow2` if absent. */
  disk: z.string().optional(),
  /** Id of the layer directly under the disk. Absent if the disk is directly on the image. */
  parent: z.string().optional(),
  layers: z.array(layerSchema).optional(),
  /** Name of QEMU's block node with the disk. The name of the command line if absent. A process keeps a node's name for its life. */
  node: z.string().optional(),
  /** Names of QEMU's block nodes with layers, by the ids of the layers. The names of the command line if absent, as for `node`. */
  nodes: z.record(z.string(), z.string()).optional(),
  /**
   * Values before a change of the disk's file in the running process. Set until the process is known to use the new file. If the agent dies
   * meanwhile, it asks the process. Without the process the new file is right in both cases, because it is on the earlier one.
   */
  switching: z
    .object({ disk: z.string().optional(), parent: z.string().optional(), node: z.string().optional() })
    .optional(),
  /**
   * Generation ID of an amd64 guest, a UUID. It is new when the disk is made, when it is reverted, and when the guest starts from the memory of
   * an image. The guest then makes its random numbers anew.
   */
  generation: z.string().optional(),
  /** Values of the machine's last start. A resume must use the same values. */
  launched: z
    .object({
      cpu: z.number().int(),
      memoryBytes: z.number().int(),
      accelerator: z.enum(['kvm', 'hvf', 'tcg']),
      /** Linux user of the process. Absent if the agent that started the process was not root. */
      runAs: runAsSchema.optional(),
      /** Files of the machine's seed, relative to the machine's folder. Absent if the machine was started without a seed. */
      seed: z.object({ disk: z.string(), ignition: z.string().optional() }).optional(),
      screen: screenSchema,
      /**
       * Devices whose plan ends with the start: the kind of the network, whether VNC serves the screen, and whether the machine has an ISO.
       */
      devices: z.object({ network: z.enum(['user', 'tap']), vnc: z.boolean(), iso: z.boolean() }).optional(),
      /** True if the guest was started from the memory of its image, and got an identity of its own. */
      fromMemory: z.boolean().optional(),
    })
    .optional(),
  /** State that the agent wants for the machine. `run` means that the agent has begun a start, and has requested no end since then. */
  intent: z.enum(['run', 'stop', 'suspend']),
  /**
   * Identity of the machine's process. Absent while there is no process, and while the process is being started. If the agent dies during a
   * start, the restarted agent searches for the process.
   */
  process: processSchema.optional(),
  /**
   * Whether the machine has a process, as far as the agent knows. True from the beginning of a start until the agent has noticed the end of
   * the process.
   */
  live: z.boolean(),
  suspended: z.boolean(),
  /** True until the first start of a guest from this disk. Only such a disk fits the memory of its image, or of the snapshot under it. */
  fresh: z.boolean().optional(),
  /** Id of the layer whose snapshot has the memory that fits the fresh disk. Absent if the disk was not reset to a snapshot with memory. */
  memoryOf: z.string().optional(),
  /**
   * True while a guest that was started from the memory of its image has not got an identity of its own yet. If the agent dies meanwhile,
   * the process is ended, and the disk is made anew before the next start.
   */
  renewing: z.boolean().optional(),
  /** Whether the guest must stay paused. Absent if the guest was never paused. */
  paused: z.boolean().optional(),
  /** Ports of the host's loopback address that QEMU forwards to the guest. If the agent dies, it closes these ports after its restart. */
  forwards: z.array(z.number().int().min(1).max(65_535)).optional(),
  end: endSchema.optional(),
});
export type MachineFile = z.infer<typeof stateSchema>;

/** Values of the state file's fields at the beginning of a start or a resume. */
export const BEGUN = {
  intent: 'run',
  live: true,
  paused: false,
  process: undefined,
  forwards: undefined,
  end: undefined,
  // A new process has the names of its command line, and uses the files that the state names.
  node: undefined,
  nodes: undefined,
  switching: undefined,
} as const;

/**
 * Reads a machine's state file. Returns undefined if the file is missing. This is the case if the folder is missing, or if the creation of
 * the machine was not finished.
 */
export async function readMachineFile(folder: string): Promise<MachineFile | undefined> {
  return await readParsed(join(folder, FILES.state), stateSchema);
}

/** Reads a machine's state file. @throws ReasonedError when the creation of the machine was not finished. */
export async function requireMachineFile(folder: string): Promise<MachineFile> {
  const state = await readMachineFile(folder);
  if (state === undefined) {
    throw new ReasonedError('StartFailed', 'The machine was not created completely');
  }
  return state;
}

/** Returns the machines whose folders are in `root`, with the values of their state files. */
export async function findMachines(root: string, logger: Logger): Promise<FoundMachine[]> {
  return await Promise.all(
    (await listFolders(root)).map(async (uid) => {
      const path = join(root, uid);
      const state = await stateOfFound(readMachineFile(path), uid, logger);
      return { uid, path, runAs: state?.launched?.runAs, base: state?.base?.path };
    }),
  );
}

/** Returns the name of the file to which the guest writes. */
export function diskFile({ disk }: Pick<MachineFile, 'disk'>): string {
  return disk ?? FILES.disk;
}

/**
 * Returns the layer with this id and all layers under it, the uppermost first. Returns none if `id` is undefined. @throws Error when a layer
 * is missing, because a disk without it would show other content.
 */
export function layersFrom({ layers = [] }: Pick<MachineFile, 'layers'>, id: string | undefined): Layer[] {
  const found: Layer[] = [];
  for (let next = id; next !== undefined; next = found.at(-1)?.parent) {
    const layer = layers.find((one) => one.id === next);
    if (layer === undefined || found.includes(layer)) {
      throw new Error(`The disk needs the layer ${next}, which the state file of the machine does not have`);
    }
    found.push(layer);
  }
  return found;
}

/** A machine's state file. */
export class QemuState extends AnyStateFile<MachineFile> {
  constructor(folder: string) {
    super(folder, { name: FILES.state, schema: stateSchema });
  }
}

const copyNoteSchema = z.object({
  /** Path of the incomplete copy of the disk. Undefined if there is no incomplete copy. */
  target: z.string().optional(),
  /** Whether the guest's file systems are perhaps frozen. */
  frozen: z.boolean(),
  /**
   * Number of thaw requests that the guest has left unconfirmed since this note was created. The number survives a restart of the agent.
   * When the guest confirms a thaw, the note is removed.
   */
  thawsFailed: z.number().int().min(0).default(0),
  /** Whether QEMU perhaps merges layers. */
  merging: z.boolean().optional(),
});
export type CopyNote = z.infer<typeof copyNoteSchema>;

/** Reads the note about a copy of the disk. If the note is damaged, the result says that file systems are perhaps frozen, and layers perhaps merged. */
export async function readCopyNote(folder: string): Promise<CopyNote | undefined> {
  try {
    return await readParsed(join(folder, FILES.copyNote), copyNoteSchema);
  } catch (error) {
    if (error instanceof UnreadableFileError && error.isDamaged) {
      return { frozen: true, thawsFailed: 0, merging: true };
    }
    throw error;
  }
}

/**
 * Writes the note about a copy of the disk. The note is written before the first file of the copy, so that the agent can clean up after a
 * crash.
 */
export async function writeCopyNote(folder: string, note: CopyNote): Promise<void> {
  await writeWhole(join(folder, FILES.copyNote), JSON.stringify(note));
}

export async function removeCopyNote(folder: string): Promise<void> {
  await rm(join(folder, FILES.copyNote), { force: true });
}
