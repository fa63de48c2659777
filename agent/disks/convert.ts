/** A disk read by qemu-img and written as a raw file with holes. */
import { open } from 'node:fs/promises';
import type { RunAs } from '../machines/users.ts';
import { closeAll, fileName, openNode, startQemuImg } from './qemuimg.ts';

/** `    (12.34/100%)\r` */
const PROGRESS = /\((\d+(?:\.\d+)?)\/100%\)/g;

export interface ConvertOptions {
  /** Where relative names in the source begin. */
  folder: string;
  /** By which the process is found when the agent died. */
  mark: string;
  /** Who reads; undefined where the agent is not root. Files of the source must be readable for it. */
  as: RunAs | undefined;
  signal: AbortSignal;
  /** With more than 0. */
  onProgress: (percent: number) => void;
}

/**
 * `source`: a block node as QEMU describes it, every file of it named. The file at the absolute path `target` is not
 * flushed when this resolves. No process is left when it settles; what it wrote is, also when it rejects.
 */
export async function convertToRaw(
  source: Record<string, unknown>,
  target: string,
  { folder, mark, as, signal, onProgress }: ConvertOptions,
): Promise<void> {
  signal.throwIfAborted();
  const from = as === undefined ? { node: source, files: [] } : await openNode(source, folder);
  const files = [...from.files];
  try {
    // Made here, since qemu-img would let everybody read it.
    const to = await open(target, 'w+', 0o600);
    files.push(to);
    if (as !== undefined) {
      await to.chown(as.uid, as.gid);
    }
    const name = as === undefined ? target : fileName(files.length - 1);
    // One request at a time: of the guest's own, which share its disk and its hypervisor, none waits for more than one of ours.
    const run = startQemuImg(
      ['convert', '-p', '-m', '1', '-O', 'raw', `json:${JSON.stringify(from.node)}`, name],
      { as, files: as === undefined ? [] : files, folder, mark, signal },
    );
    run.output.setEncoding('utf8').on('data', (text: string) => {
      const percent = Number([...text.matchAll(PROGRESS)].at(-1)?.[1] ?? 0);
      if (percent > 0) {
        onProgress(percent);
      }
    });
    await run.ended;
    // The reader's work is done: nobody else with its user may write to the copy.
    if (as !== undefined) {
      await to.chown(0, 0);
    }
  } finally {
    await closeAll(files);
  }
  signal.throwIfAborted();
}
