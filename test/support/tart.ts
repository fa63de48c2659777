/**
 * VM images as Tart's `push` writes them, by hand from its source and independent of the product: descriptors, annotations and the
 * order of layers, Apple's framing of LZ4, and the requests that carry them to a registry.
 */
import { readFile } from 'node:fs/promises';
import { Agent, type Dispatcher, request } from 'undici';
import { lz4Stream } from './lz4.ts';
import { PASSWORD, type TestRegistry, USER } from './registry.ts';
import { type ImageBlob, type ImageToPush, OCI_CONFIG, OCI_MANIFEST, sha256 } from './vmimages.ts';

const TYPE = 'application/vnd.cirruslabs.tart.';
const NOTE = 'org.cirruslabs.tart.';
const MIB = 1024 * 1024;
/** As Tart cuts disks. */
const LAYER_BYTES = 512 * MIB;

export interface TartOptions {
  /** Of the machine; amd64 when absent. */
  architecture?: 'amd64' | 'arm64';
  /** Of each layer but the last; Tart's own when absent. */
  layerBytes?: number;
  nvram?: Buffer;
}

/** Of a raw disk. */
export async function tartImage(disk: string, options: TartOptions = {}): Promise<ImageToPush> {
  const { architecture = 'amd64', layerBytes = LAYER_BYTES, nvram = Buffer.from('nvram') } = options;
  const raw = await readFile(disk);
  const parts = Array.from({ length: Math.ceil(raw.length / layerBytes) }, (_, index) =>
    raw.subarray(index * layerBytes, (index + 1) * layerBytes),
  );
  const layer = (type: string, bytes: Buffer, annotations: Record<string, string> = {}): ImageBlob => ({
    mediaType: `${TYPE}${type}`,
    bytes,
    annotations,
  });
  return {
    config: { mediaType: OCI_CONFIG, bytes: json(STUB) },
    layers: [
      layer('config.v1', json({ ...MACHINE, arch: architecture })),
      ...parts.map((part) =>
        layer('disk.v2', lz4Stream(part), {
          [`${NOTE}uncompressed-size`]: String(part.length),
          [`${NOTE}uncompressed-content-digest`]: sha256(part),
        }),
      ),
      layer('nvram.v1', nvram),
    ],
    annotations: {
      [`${NOTE}uncompressed-disk-size`]: String(raw.length),
      [`${NOTE}upload-time`]: '2026-01-01T00:00:00Z',
    },
  };
}

/** For registries that show pictures of images: the same for every machine, whatever its architecture and system. */
const STUB = {
  architecture: 'arm64',
  config: { Labels: { [`${NOTE}disk.format`]: 'raw' } },
  os: 'darwin',
};

const MACHINE = {
  version: 1,
  os: 'linux',
  cpuCountMin: 2,
  cpuCount: 2,
  memorySizeMin: 512 * MIB,
  memorySize: 1024 * MIB,
  macAddress: '7a:65:e4:3f:b6:02',
  display: { width: 1024, height: 768 },
  diskFormat: 'raw',
};

/** Publishes a raw disk under `NAME:TAG`; its reference `HOST/NAME:TAG`. */
export async function pushTart(
  registry: TestRegistry,
  nameAndTag: string,
  disk: string,
  options: TartOptions = {},
): Promise<string> {
  const [name = '', tag = ''] = nameAndTag.split(':');
  const image = await tartImage(disk, options);
  const dispatcher = new Agent({ connect: { ca: await readFile(registry.caFile, 'utf8') } });
  try {
    const to = { registry, dispatcher, name };
    const config = await pushBlob(to, image.config);
    const layers: object[] = [];
    for (const layer of image.layers) {
      layers.push(await pushBlob(to, layer));
    }
    const { annotations } = image;
    const manifest = json({ annotations, config, layers, mediaType: OCI_MANIFEST, schemaVersion: 2 });
    const type = { 'content-type': OCI_MANIFEST };
    await send(to, { method: 'PUT', path: `manifests/${tag}`, body: manifest, headers: type, expected: 201 });
  } finally {
    await dispatcher.close();
  }
  return `${registry.host}/${nameAndTag}`;
}

interface Target {
  registry: TestRegistry;
  dispatcher: Dispatcher;
  /** Of the repository. */
  name: string;
}

/** In one piece, unless the registry has it; what the manifest says of it. */
async function pushBlob(to: Target, { mediaType, bytes, annotations }: ImageBlob): Promise<object> {
  const digest = sha256(bytes);
  const { statusCode } = await send(to, { method: 'HEAD', path: `blobs/${digest}` });
  if (statusCode === 404) {
    const { location } = await send(to, { method: 'POST', path: 'blobs/uploads/', expected: 202 });
    const upload = new URL(location, to.registry.url);
    upload.searchParams.set('digest', digest);
    const headers = { 'content-type': 'application/octet-stream' };
    await send(to, { method: 'PUT', path: upload.href, body: bytes, headers, expected: 201 });
  }
  return { mediaType, size: bytes.length, digest, ...(annotations && { annotations }) };
}

interface Sent {
  method: 'HEAD' | 'POST' | 'PUT';
  /** Below the repository, or a whole address. */
  path: string;
  body?: Buffer;
  headers?: Record<string, string>;
  /** Any other answer is an error. */
  expected?: number;
}

async function send(
  { registry, dispatcher, name }: Target,
  { method, path, body = Buffer.alloc(0), headers = {}, expected }: Sent,
): Promise<{ statusCode: number; location: string }> {
  const authorization = `Basic ${Buffer.from(`${USER}:${PASSWORD}`).toString('base64')}`;
  const url = new URL(path, `${registry.url}/v2/${name}/`);
  const answer = await request(url, { dispatcher, method, body, headers: { authorization, ...headers } });
  const text = await answer.body.text();
  if (expected !== undefined && answer.statusCode !== expected) {
    throw new Error(`${method} ${url.pathname} gave ${answer.statusCode}: ${text}`);
  }
  return { statusCode: answer.statusCode, location: String(answer.headers.location ?? '') };
}

function json(content: object): Buffer {
  return Buffer.from(JSON.stringify(content));
}
