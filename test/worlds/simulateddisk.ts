/** Files of simulated hypervisors: disks in layers, and memories. Each has its content as JSON. */
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';

export interface Content {
  count: number;
  /** Number of times that the save hooks have run in the guest. */
  prepared: number;
}
type Overlay = { base?: string; own?: Content };

/** Reads a JSON file that is filled up with zeros. */
export function readJson(path: string): unknown {
  return JSON.parse(readFileSync(path, 'latin1').replaceAll('\0', ''));
}

/** Content of a disk: an overlay that has no content of its own yet shows its base, which can be a layer in the same folder. */
export function contentOf(path: string): Content {
  const { base, own } = readJson(path) as Overlay;
  const below = base === undefined ? undefined : contentOf(resolve(dirname(path), base));
  return own ?? below ?? { count: 0, prepared: 0 };
}

/** Writes the content of an overlay to its base. The overlays above it then have the base under them. */
export function commitOverlay(folder: string, top: string, base: string): void {
  const [above, below] = [top, base].map((name) => readJson(join(folder, name)) as Overlay);
  writeFileSync(join(folder, base), JSON.stringify({ ...below, own: above?.own ?? below?.own }));
  for (const name of readdirSync(folder).filter((one) => /^disk.*\.qcow2$/.test(one))) {
    const overlay = readJson(join(folder, name)) as Overlay;
    if (overlay.base === top) {
      writeFileSync(join(folder, name), JSON.stringify({ ...overlay, base }));
    }
  }
}

/** Content of the memory that a snapshot has. */
export function memoryOf(path: string): Content {
  return readJson(path) as Content;
}

/** Returns whether the user of a machine can write to this file. Without root, all files belong to the user of the tests. */
export function isWritable(path: string): boolean {
  const { uid, mode } = statSync(path);
  return process.getuid?.() !== 0 || (uid !== 0 && (mode & 0o200) !== 0);
}
