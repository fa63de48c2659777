/** What a disk image from a stranger is, and whether it may be used. */
import { execFile } from 'node:child_process';
import { open } from 'node:fs/promises';
import { z } from 'zod';
import { type DiskFormat, ImageError, type ImageFormat } from './store.ts';

/** "QFI\xfb". A raw disk that a guest filled with it would be read as qcow2, and then be refused or be what it says. */
const QCOW2_MAGIC = Buffer.from([0x51, 0x46, 0x49, 0xfb]);
const SECTOR_BYTES = 512;
/** Far beyond any disk of a desktop system; a header may claim 2^63. */
const VIRTUAL_SIZE_LIMIT_BYTES = 64 * 1024 ** 4;
/** Reads a header: milliseconds. A hostile one may try to make it take for ever. */
const INFO_TIMEOUT_MILLISECONDS = 10_000;
/** The address space of qemu-img: 40 MiB are its own, and the tables of a header are bounded by QEMU. */
const INFO_ADDRESS_SPACE_BYTES = 1024 * 1024 * 1024;
const OUTPUT_LIMIT_BYTES = 1024 * 1024;

const infoSchema = z.object({
  'virtual-size': z.number(),
  'backing-filename': z.string().optional(),
  'full-backing-filename': z.string().optional(),
  encrypted: z.boolean().optional(),
  snapshots: z.array(z.unknown()).optional(),
  'format-specific': z
    .object({
      data: z.object({ 'data-file': z.string().optional(), corrupt: z.boolean().optional() }).optional(),
    })
    .optional(),
});
type Info = z.infer<typeof infoSchema>;

export interface InspectedImage {
  format: DiskFormat;
  virtualSizeBytes: number;
}

/** `expected`: what the Image says its format is. Throws {@link ImageError} `ImageInvalid` with the reason. */
export async function inspectImage(path: string, expected: ImageFormat = 'Auto'): Promise<InspectedImage> {
  const { isQcow2, size } = await header(path);
  if (expected === 'QCOW2' && !isQcow2) throw new ImageError('ImageInvalid', 'the image is not qcow2');
  if (!isQcow2 || expected === 'Raw') {
    if (size === 0 || size % SECTOR_BYTES !== 0) {
      throw new ImageError(
        'ImageInvalid',
        `${size} bytes are neither a qcow2 image nor a raw disk, which has whole sectors of ${SECTOR_BYTES} bytes`,
      );
    }
    return { format: 'raw', virtualSizeBytes: size };
  }
  const info = await qcow2Info(path);
  const refusal = refusalOf(info);
  if (refusal !== undefined) throw new ImageError('ImageInvalid', `the qcow2 image ${refusal}`);
  return { format: 'qcow2', virtualSizeBytes: info['virtual-size'] };
}

/** Anything by which the image would read another file, or bring more than a disk. */
function refusalOf(info: Info): string | undefined {
  const data = info['format-specific']?.data ?? {};
  const refusals: [unknown, string][] = [
    [info['backing-filename'], `names a backing file (${info['backing-filename']})`],
    [info['full-backing-filename'], `names a backing file (${info['full-backing-filename']})`],
    [data['data-file'], `names a data file (${data['data-file']})`],
    [info.encrypted, 'is encrypted'],
    [info.snapshots?.length, 'holds snapshots'],
    [data.corrupt, 'is marked as corrupt'],
    [info['virtual-size'] > VIRTUAL_SIZE_LIMIT_BYTES, `claims ${info['virtual-size']} bytes`],
  ];
  // An empty name is a name.
  return refusals.find(([found]) => found !== undefined && found !== false && found !== 0)?.[1];
}

async function header(path: string): Promise<{ isQcow2: boolean; size: number }> {
  const file = await open(path, 'r');
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(QCOW2_MAGIC.length), 0, QCOW2_MAGIC.length, 0);
    const { size } = await file.stat();
    return { isQcow2: bytesRead === QCOW2_MAGIC.length && buffer.equals(QCOW2_MAGIC), size };
  } finally {
    await file.close();
  }
}

/** Opens the file alone: with the format said, info follows nothing that the image names. */
async function qcow2Info(path: string): Promise<Info> {
  const parameters = ['info', '-U', '-f', 'qcow2', '--output=json', path];
  const [program, ...rest] =
    process.platform === 'linux'
      ? ['prlimit', `--as=${INFO_ADDRESS_SPACE_BYTES}`, 'qemu-img', ...parameters]
      : ['qemu-img', ...parameters];
  const output = await new Promise<string>((resolve, reject) => {
    execFile(
      program ?? 'qemu-img',
      rest,
      {
        timeout: INFO_TIMEOUT_MILLISECONDS,
        killSignal: 'SIGKILL',
        maxBuffer: OUTPUT_LIMIT_BYTES,
        env: { PATH: process.env['PATH'], LC_ALL: 'C' },
      },
      (error, stdout, stderr) => {
        if (error === null) resolve(stdout);
        else
          reject(
            new ImageError('ImageInvalid', `not a usable qcow2 image: ${stderr.trim() || error.message}`),
          );
      },
    );
  });
  return infoSchema.parse(JSON.parse(output));
}
