/** Images as registries and container runtimes see them: read from the OCI archives that `make images` writes. */
import { execFile } from 'node:child_process';
import { mkdir, readFile, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { promisify } from 'node:util';

const execute = promisify(execFile);

/** Of the specification's `config`, what a runtime acts on. */
export interface ImageConfig {
  User?: string;
  Entrypoint: string[];
  Cmd: string[];
  Env: string[];
  Labels: Record<string, string>;
  ExposedPorts?: Record<string, object>;
}

export interface UnpackedImage {
  /** What `ctr images import` calls it. */
  name: string;
  config: ImageConfig;
  /** Folder of the root file system. */
  root: string;
  /** What that takes on a disk. */
  bytes: number;
}

interface Descriptor {
  digest: string;
  annotations?: Record<string, string>;
}

/** Unpacks into `folder`, which is made. Only root can, since files keep their owners. */
export async function unpackImage(archive: string, folder: string): Promise<UnpackedImage> {
  const layout = join(folder, 'layout');
  const root = join(folder, 'root');
  await mkdir(layout, { recursive: true });
  await mkdir(root);
  await execute('tar', ['--extract', '--file', archive, '--directory', layout]);
  const read = async <T>(path: string): Promise<T> =>
    JSON.parse(await readFile(join(layout, path), 'utf8')) as T;
  const index = await read<{ manifests: Descriptor[] }>('index.json');
  const [top] = index.manifests;
  if (top === undefined || index.manifests.length !== 1) throw new Error(`${archive}: not exactly one image`);
  const manifest = await read<{ config: Descriptor; layers: Descriptor[] }>(blob(top));
  const { config } = await read<{ config: ImageConfig }>(blob(manifest.config));
  for (const layer of manifest.layers) await applyLayer(join(layout, blob(layer)), root);
  await rm(layout, { recursive: true });
  const { stdout } = await execute('du', ['--summarize', '--bytes', root]);
  return {
    name: top.annotations?.['io.containerd.image.name'] ?? '',
    config,
    root,
    bytes: Number.parseInt(stdout, 10),
  };
}

/** The same image with a root file system of its own below `folder`. */
export async function copyImage(image: UnpackedImage, folder: string): Promise<UnpackedImage> {
  const root = join(folder, 'root');
  await mkdir(folder, { recursive: true });
  await execute('cp', ['--archive', '--reflink=auto', image.root, root]);
  return { ...image, root };
}

function blob({ digest }: Descriptor): string {
  return join('blobs', ...digest.split(':'));
}

/** A file named `.wh.X` takes X of the layers below away. */
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
