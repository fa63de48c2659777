/** qemu-img, with the format always said by us, and held to limits: it reads files that strangers made. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const execute = promisify(execFile);

/** A new or grown qcow2 is metadata only: some 14 ms for 100 GiB. */
const METADATA_TIMEOUT_MILLISECONDS = 30_000;
const OUTPUT_LIMIT_BYTES = 1024 * 1024;

/** A qcow2 at `path` that shows `base` and keeps what is written to it. */
export async function createOverlay(
  path: string,
  base: { path: string; format: 'qcow2' | 'raw' },
  sizeBytes: number,
): Promise<void> {
  // -u: the base was checked when it came into the store, and its size is given.
  const parameters = ['create', '-q', '-u', '-f', 'qcow2', '-F', base.format, '-b', base.path, path];
  await qemuImg([...parameters, String(sizeBytes)]);
}

export async function createBlank(path: string, sizeBytes: number): Promise<void> {
  await qemuImg(['create', '-q', '-f', 'qcow2', path, String(sizeBytes)]);
}

export async function growDisk(path: string, sizeBytes: number): Promise<void> {
  await qemuImg(['resize', '-q', '-f', 'qcow2', path, String(sizeBytes)]);
}

async function qemuImg(parameters: string[]): Promise<void> {
  await execute('qemu-img', parameters, {
    timeout: METADATA_TIMEOUT_MILLISECONDS,
    killSignal: 'SIGKILL',
    maxBuffer: OUTPUT_LIMIT_BYTES,
    env: { PATH: process.env['PATH'], LC_ALL: 'C' },
  });
}
