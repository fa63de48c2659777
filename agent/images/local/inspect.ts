/** Inspects an untrusted disk image: determines its format and size, and refuses an image that cannot be used. */
import { type FileHandle, open } from 'node:fs/promises';
import * as z from 'zod';
import type { MachineImageSource } from '../../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { readQcow2 } from '../../disks/qcow2.ts';
import { ProgramError, type RunAs } from '../../../base/exec.ts';
import { JsonError, type JsonLimits, parseJson } from '../../../base/json.ts';
import { qcow2Info } from '../../disks/qemuimg.ts';
import { type DiskFormat, SECTOR_BYTES } from '../../disks/disk.ts';
import { type ForeignFormat, foreignFormatOf } from './foreign.ts';

/**
 * Format of an image, as the user specifies it. With `Auto`, the content determines the format. `ISO` is for content that a guest gets as a
 * read-only drive: it is used as it is, but it must not be a file of another format.
 */
export type ImageFormat = 'Auto' | 'Raw' | 'QCOW2' | 'ISO';

/**
 * Magic bytes at the beginning of a qcow2 file, "QFI\xfb". A guest can write these bytes to the beginning of its raw disk. If this disk
 * becomes an image with the format `Auto`, Berth treats it as a qcow2 file. Berth refuses the image if it is not a usable qcow2 file.
 */
const QCOW2_MAGIC = Buffer.from([0x51, 0x46, 0x49, 0xfb]);
/** A qcow2 disk in place of an ISO. */
const QCOW2: ForeignFormat = { name: 'a qcow2 disk', advice: 'convert it with qemu-img convert -O raw' };
/** Exit code of qemu-img when it cannot use an image. */
const REFUSED_EXIT_CODE = 1;
/**
 * Signals that end a program because the program itself failed, for example because it read a wrong address. The kernel sends SIGXCPU to a
 * program that reached its limit of CPU time. If one of these signals ends qemu-img, the content of the image is the cause.
 */
const CRASHES: ReadonlySet<string | undefined> = new Set([
  'SIGABRT',
  'SIGTRAP',
  'SIGSEGV',
  'SIGBUS',
  'SIGFPE',
  'SIGXCPU',
]);

/**
 * Output of `qemu-img info`. The schema is a second check: like Berth's own check of the header, it refuses features such as a backing
 * file.
 */
const infoSchema = z.object({
  'virtual-size': z.number(),
  'backing-filename': z.never().optional(),
  'full-backing-filename': z.never().optional(),
  encrypted: z.literal(false).optional(),
  snapshots: z.array(z.unknown()).max(0).optional(),
  'format-specific': z
    .object({
      data: z.object({ 'data-file': z.never().optional(), corrupt: z.literal(false).optional() }).optional(),
    })
    .optional(),
});

export interface InspectedImage {
  format: DiskFormat;
  virtualSizeBytes: number;
}

/**
 * Returns the format to expect of a source. `stated` is the format that the user states for the source of an Image. It does not apply to
 * content of the cluster's image storage. The agent stores content of any format there as a qcow2 file, or as an artifact with a raw disk.
 */
export function formatOf({ type }: MachineImageSource, stated: ImageFormat = 'Auto'): ImageFormat {
  if (type === 'storedFile') {
    return 'QCOW2';
  }
  return type === 'storedArtifact' ? 'Raw' : stated;
}

/**
 * Checks an image and returns its format and virtual size. `expected` is the format that the Image states. If the agent runs as
 * root, programs read the image as the user `reader`.
 *
 * @throws ReasonedError `ImageInvalid` with the cause when the image cannot be used; ProgramError when this host cannot run qemu-img.
 */
export async function inspectImage(
  path: string,
  expected: ImageFormat = 'Auto',
  reader?: RunAs,
): Promise<InspectedImage> {
  const file = await open(path, 'r');
  try {
    const { size } = await file.stat();
    const isQcow2 = await isQcow2File(file);
    if (isQcow2 && (expected === 'Auto' || expected === 'QCOW2')) {
      return { format: 'qcow2', virtualSizeBytes: await virtualSizeOf({ file, path }, reader) };
    }
    if (expected !== 'Raw') {
      refuseForeign(isQcow2 ? QCOW2 : await foreignFormatOf(file, size), expected);
    }
    if (size === 0 || size % SECTOR_BYTES !== 0) {
      throw new ReasonedError(
        'ImageInvalid',
        `The image is neither qcow2 nor a raw disk: its size of ${size} bytes is not a positive multiple of ${SECTOR_BYTES}`,
      );
    }
    return { format: 'raw', virtualSizeBytes: size };
  } finally {
    await file.close();
  }
}

async function isQcow2File(file: FileHandle): Promise<boolean> {
  const { length } = QCOW2_MAGIC;
  const { buffer } = await file.read(Buffer.alloc(length), 0, length, 0);
  return buffer.equals(QCOW2_MAGIC);
}

/** Refuses a file that is no qcow2 disk, if it is of a format that Berth does not read or if the user states qcow2. */
function refuseForeign(foreign: ForeignFormat | undefined, expected: 'Auto' | 'QCOW2' | 'ISO'): void {
  if (expected === 'QCOW2') {
    const name = foreign === undefined ? '' : `: it is ${foreign.name}. Instead, ${foreign.advice}`;
    throw new ReasonedError('ImageInvalid', `The image is not a qcow2 file${name}`);
  }
  if (foreign === undefined) {
    return;
  }
  throw new ReasonedError(
    'ImageInvalid',
    expected === 'ISO'
      ? `The file is ${foreign.name}, which is not an ISO: ${foreign.advice}`
      : `The image is ${foreign.name}, but Berth reads only raw and qcow2 disks: ${foreign.advice}. If it is a raw disk, state the format Raw`,
  );
}

/**
 * Returns the virtual size of a qcow2 image in bytes. Berth checks the header first. qemu-img reads the file only if the header passes this
 * check.
 */
async function virtualSizeOf(
  { file, path }: { file: FileHandle; path: string },
  reader: RunAs | undefined,
): Promise<number> {
  const verdict = await readQcow2(file);
  if ('refusal' in verdict) {
    throw new ReasonedError('ImageInvalid', `The qcow2 image ${verdict.refusal}`);
  }
  const info = await infoOf({ file, path }, reader);
  if (info['virtual-size'] !== verdict.virtualSizeBytes) {
    throw new ReasonedError(
      'ImageInvalid',
      `The header of the qcow2 image states ${verdict.virtualSizeBytes} bytes, but qemu-img reports ${info['virtual-size']}`,
    );
  }
  return verdict.virtualSizeBytes;
}

/** Limits of the output of `qemu-img info`. A qcow2 image without snapshots and without a backing file has about 30 items. */
const INFO_LIMITS: JsonLimits = { bytes: 64 * 1024, items: 1_024 };

async function infoOf(
  image: { file: FileHandle; path: string },
  reader: RunAs | undefined,
): Promise<z.infer<typeof infoSchema>> {
  try {
    return infoSchema.parse(parseJson(await qcow2Info(image, reader), INFO_LIMITS));
  } catch (error) {
    if (!(isRefusal(error) || error instanceof z.ZodError || error instanceof JsonError)) {
      throw error;
    }
    throw new ReasonedError('ImageInvalid', `The qcow2 image cannot be used: ${error.message}`, {
      cause: error,
    });
  }
}

/**
 * Returns whether the image caused the failure of qemu-img. qemu-img refuses an unusable image. A hostile image can also make qemu-img
 * crash, run forever, or write without end. All other failures are failures of this host. For example, qemu-img is not installed, the host
 * had too little memory and killed it, or the host was too busy to run it.
 */
function isRefusal(error: unknown): error is ProgramError {
  return (
    error instanceof ProgramError &&
    (error.exitCode === REFUSED_EXIT_CODE || error.exceeded === 'output' || CRASHES.has(error.killedBy))
  );
}
