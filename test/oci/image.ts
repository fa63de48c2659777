/** Reads images from the archives of `make images`, as registries and container runtimes see them. */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { promisify } from 'node:util';

const execute = promisify(execFile);

/** Fields of the specification's `config` that runtimes use. */
export interface ImageConfig {
  User?: string;
  Entrypoint: string[];
  Cmd: string[];
  Env: string[];
  Labels: Record<string, string>;
  ExposedPorts?: Record<string, object>;
}

export interface UnpackedImage {
  /** Name that `ctr images import` gives to the image. */
  name: string;
  config: ImageConfig;
  /** Folder of the root file system. */
  root: string;
  /** Size of the root file system on a disk, in bytes. */
  bytes: number;
}

/** The common part of both formats. The paths are in the unpacked archive. */
interface Contents {
  name: string;
  config: string;
  layers: string[];
}

interface Descriptor {
  digest: string;
  annotations?: Record<string, string>;
}

/** Unpacks the archive into a new folder. Only root can do this, because files keep their owners. */
export async function unpackImage(archive: string, folder: string): Promise<UnpackedImage> {
  const layout = join(folder, 'layout');
  const root = join(folder, 'root');
  await mkdir(layout, { recursive: true });
  await mkdir(root);
  await execute('tar', ['--extract', '--file', archive, '--directory', layout]);
  // Docker's archives have `manifest.json`. Newer ones also have the index of an OCI archive.
  const contents = existsSync(join(layout, 'manifest.json')) ? dockerContents : ociContents;
  const { name, config, layers } = await contents(layout);
  const document = await readJson<{ config: ImageConfig }>(join(layout, config));
  for (const layer of layers) {
    await applyLayer(join(layout, layer), root);
  }
  await rm(layout, { recursive: true });
  const { stdout } = await execute('du', ['--summarize', '--bytes', root]);
  return { name, config: document.config, root, bytes: Number.parseInt(stdout, 10) };
}

async function dockerContents(layout: string): Promise<Contents> {
  const path = join(layout, 'manifest.json');
  const [image] = await readJson<{ Config: string; RepoTags: string[]; Layers: string[] }[]>(path);
  if (image === undefined) {
    throw new Error(`${path} lists no image`);
  }
  return { name: image.RepoTags[0] ?? '', config: image.Config, layers: image.Layers };
}

async function ociContents(layout: string): Promise<Contents> {
  const path = join(layout, 'index.json');
  const [image] = (await readJson<{ manifests: Descriptor[] }>(path)).manifests;
  if (image === undefined) {
    throw new Error(`${path} lists no image`);
  }
  const manifest = await readJson<{ config: Descriptor; layers: Descriptor[] }>(join(layout, blob(image)));
  return {
    name: image.annotations?.['io.containerd.image.name'] ?? '',
    config: blob(manifest.config),
    layers: manifest.layers.map(blob),
  };
}

async function readJson<T>(path: string): Promise<T> {
  return JSON.parse(await readFile(path, 'utf8')) as T;
}

/** Returns the same image with a copy of its root file system below `folder`. */
export async function copyImage(image: UnpackedImage, folder: string): Promise<UnpackedImage> {
  const root = join(folder, 'root');
  await mkdir(folder, { recursive: true });
  await execute('cp', ['--archive', '--reflink=auto', image.root, root]);
  return { ...image, root };
}

function blob({ digest }: Descriptor): string {
  return join('blobs', ...digest.split(':'));
}

/** Applies a layer. A file named `.wh.X` removes X of the layers below. */
async function applyLayer(layer: string, root: string): Promise<void> {
  const { stdout } = await execute('tar', ['--list', '--file', layer], { maxBuffer: 64 * 1024 * 1024 });
  for (const path of stdout.split('\n').filter((name) => basename(name).startsWith('.wh.'))) {
    await rm(join(root, dirname(path), basename(path).slice('.wh.'.length)), {
      recursive: true,
      force: true,
    });
  }
  const owners = ['--same-owner', '--preserve-permissions', '--numeric-owner'];
  await execute('tar', ['--extract', ...owners, '--exclude=.wh.*', '--file', layer, '--directory', root]);
}
