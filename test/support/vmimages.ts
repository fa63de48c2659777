/** Images with disks, as the tests publish them: container images with skopeo, and broken ones. */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { link, mkdir, mkdtemp, open, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { promisify } from 'node:util';
import type { Descriptor, Repository } from '../../agent/images/oci/types.ts';
import type { TestRegistry } from './registry.ts';

const run = promisify(execFile);

export const OCI_MANIFEST = 'application/vnd.oci.image.manifest.v1+json';
export const OCI_CONFIG = 'application/vnd.oci.image.config.v1+json';
const OCI_LAYER = 'application/vnd.oci.image.layer.v1.tar';
const MIB = 1024 * 1024;

type Encoding = 'none' | 'gzip' | 'zstd';

export function sha256(bytes: Buffer): string {
  return `sha256:${createHash('sha256').update(bytes).digest('hex')}`;
}

async function fileSha256(path: string): Promise<string> {
  const hash = createHash('sha256');
  await pipeline(createReadStream(path, { highWaterMark: MIB }), hash);
  return `sha256:${hash.digest('hex')}`;
}

/** A raw disk with random and compressible data in every `every`th MiB, holes between. */
export async function writeRawDisk(path: string, mebibytes: number, every = 2): Promise<void> {
  const file = await open(path, 'w');
  try {
    await file.truncate(mebibytes * MIB);
    for (let index = 0; index < mebibytes; index += every) {
      await file.write(diskData(index), 0, MIB, index * MIB);
    }
  } finally {
    await file.close();
  }
}

/** A MiB that compresses to about a third, and differs from every other. */
function diskData(seed: number): Buffer {
  const bytes = Buffer.alloc(MIB);
  let block = createHash('sha256').update(`berth ${seed}`).digest();
  for (let at = 0; at < MIB; at += 96) {
    block = createHash('sha256').update(block).digest();
    block.copy(bytes, at);
    bytes.write('the same words over and over again in all of them', at + 32, 'latin1');
  }
  return bytes;
}

/** Something to be put in a registry as it is. */
export interface ImageBlob {
  mediaType: string;
  bytes: Buffer;
  annotations?: Record<string, string>;
}

export interface ImageToPush {
  config: ImageBlob;
  layers: (ImageBlob & { describedAs?: Partial<Descriptor> })[];
  artifactType?: string;
  annotations?: Record<string, string>;
}

/** Puts an image in a registry whatever it is; the manifest's digest. `describedAs`: what the manifest says of a layer against the truth. */
export async function pushImage(repository: Repository, tag: string, image: ImageToPush): Promise<string> {
  const { signal } = new AbortController();
  const put = async ({ mediaType, bytes, annotations }: ImageBlob): Promise<Descriptor> => {
    const descriptor = { mediaType, digest: sha256(bytes), size: bytes.length };
    await repository.upload({ ...descriptor, content: () => bytes }, signal);
    return annotations === undefined ? descriptor : { ...descriptor, annotations };
  };
  const config = await put(image.config);
  const layers: Descriptor[] = [];
  for (const layer of image.layers) {
    layers.push({ ...(await put(layer)), ...layer.describedAs });
  }
  const { artifactType, annotations } = image;
  const manifest = { schemaVersion: 2, mediaType: OCI_MANIFEST, artifactType, config, layers, annotations };
  return await repository.putManifest(tag, OCI_MANIFEST, Buffer.from(JSON.stringify(manifest)), signal);
}

/** An image of layers that are given; their content as it is without compression, where that is to be said, in `diffIds`. */
export function containerImage(
  layers: Buffer[],
  encoding: Encoding = 'none',
  diffIds?: string[],
): ImageToPush {
  const rootfs = diffIds === undefined ? {} : { rootfs: { type: 'layers', diff_ids: diffIds } };
  const config = Buffer.from(JSON.stringify({ architecture: 'amd64', os: 'linux', ...rootfs }));
  const mediaType = encoding === 'none' ? OCI_LAYER : `${OCI_LAYER}+${encoding}`;
  return {
    config: { mediaType: OCI_CONFIG, bytes: config },
    layers: layers.map((bytes) => ({ mediaType, bytes })),
  };
}

export interface TarItem {
  name: string;
  /** A regular file's when absent. */
  type?: string;
  content?: Buffer;
  /** What the header says in place of the content's length. */
  size?: number;
  linkName?: string;
}

/** Without compression. */
export function tarOf(items: readonly TarItem[]): Buffer {
  const parts = items.flatMap(({ name, type = '0', content = Buffer.alloc(0), size, linkName = '' }) => {
    const header = Buffer.alloc(512);
    header.write(name, 0);
    header.write('0000444\0', 100);
    writeSize(header, size ?? content.length);
    header.write(type, 156, 'latin1');
    header.write(linkName, 157);
    header.write('ustar\x0000', 257, 'latin1');
    header.fill(0x20, 148, 156);
    const sum = header.reduce((total, byte) => total + byte, 0);
    header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
    return [header, content, Buffer.alloc((512 - (content.length % 512)) % 512)];
  });
  return Buffer.concat([...parts, Buffer.alloc(1024)]);
}

/** Octal, and from 8 GiB on binary, as GNU has it. */
function writeSize(header: Buffer, size: number): void {
  const octal = size.toString(8).padStart(11, '0');
  if (octal.length <= 11) {
    header.write(octal, 124);
  } else {
    header[124] = 0x80;
    header.writeBigUInt64BE(BigInt(size), 128);
  }
}

export interface ContainerDiskOptions {
  encoding?: Exclude<Encoding, 'none'>;
  /** Docker's manifest in place of OCI's: with gzip only, as Docker has it. */
  docker?: boolean;
  architecture?: string;
  /** Below /disk. */
  fileName?: string;
}

/** Publishes a disk as the containerdisks of KubeVirt are made: one layer, its reference `HOST/NAME`. */
export async function pushContainerDisk(
  registry: TestRegistry,
  name: string,
  disk: string,
  options: ContainerDiskOptions = {},
): Promise<string> {
  const { encoding = 'gzip', docker = false, architecture = 'amd64', fileName = 'disk.img' } = options;
  const folder = await mkdtemp(join(registry.directory, 'containerdisk-'));
  try {
    await mkdir(join(folder, 'disk'));
    await link(disk, join(folder, 'disk', fileName));
    const owner = ['--owner=qemu:107', '--group=qemu:107', '--mode=0444', '--hard-dereference'];
    await run('tar', [...owner, '-C', folder, '-cf', join(folder, 'layer.tar'), 'disk/']);
    const diffId = await fileSha256(join(folder, 'layer.tar'));
    const [packed, ...pack] =
      encoding === 'gzip' ? ['layer.tar.gz', 'gzip', '-1'] : ['layer.tar.zst', 'zstd', '-q', '-T2', '--rm'];
    await run(pack[0] ?? '', [...pack.slice(1), join(folder, 'layer.tar')]);
    const config = { architecture, os: 'linux', rootfs: { type: 'layers', diff_ids: [diffId] } };
    const layout = await writeLayout(folder, join(folder, packed), `${OCI_LAYER}+${encoding}`, config);
    const reference = `${registry.host}/${name}`;
    const format = docker ? ['--format', 'v2s2'] : [];
    await registry.skopeo('copy', ...format, `oci:${layout}:disk`, `docker://${reference}`);
    return reference;
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** An OCI layout with one image of one layer, tagged `disk`. */
async function writeLayout(
  folder: string,
  layer: string,
  mediaType: string,
  config: object,
): Promise<string> {
  const layout = join(folder, 'layout');
  const blobs = join(layout, 'blobs', 'sha256');
  await mkdir(blobs, { recursive: true });
  const put = async (content: object, type: string): Promise<Descriptor> => {
    const bytes = Buffer.from(JSON.stringify(content));
    const digest = sha256(bytes);
    await writeFile(join(blobs, digest.slice('sha256:'.length)), bytes);
    return { mediaType: type, digest, size: bytes.length };
  };
  const digest = await fileSha256(layer);
  const { size } = await stat(layer);
  await rename(layer, join(blobs, digest.slice('sha256:'.length)));
  const manifest = {
    schemaVersion: 2,
    mediaType: OCI_MANIFEST,
    config: await put(config, OCI_CONFIG),
    layers: [{ mediaType, digest, size }],
  };
  const annotations = { 'org.opencontainers.image.ref.name': 'disk' };
  const index = { schemaVersion: 2, manifests: [{ ...(await put(manifest, OCI_MANIFEST)), annotations }] };
  await writeFile(join(layout, 'oci-layout'), '{"imageLayoutVersion":"1.0.0"}');
  await writeFile(join(layout, 'index.json'), JSON.stringify(index));
  return layout;
}
