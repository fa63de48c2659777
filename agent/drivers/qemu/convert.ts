/** A disk read by qemu-img and written as a raw file with holes. */
import { spawn } from 'node:child_process';
import { open } from 'node:fs/promises';
import { constants, setPriority } from 'node:os';

/** Of what qemu-img says, the end is kept. */
const WORDS_LIMIT_CHARACTERS = 2_000;
/** `    (12.34/100%)\r` */
const PROGRESS = /\((\d+(?:\.\d+)?)\/100%\)/g;

export interface ConvertOptions {
  /** Where relative names in the source begin. */
  folder: string;
  /** The process's own name, by which it is found when the agent died. */
  name: string;
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
  options: ConvertOptions,
): Promise<void> {
  options.signal.throwIfAborted();
  // Made here, since qemu-img would let everybody read it.
  await (await open(target, 'w', 0o600)).close();
  // One request at a time: of the guest's own, which share its disk and its hypervisor, none waits for more than one of ours.
  const parameters = ['convert', '-p', '-m', '1', '-O', 'raw', `json:${JSON.stringify(source)}`, target];
  await run(parameters, options);
  options.signal.throwIfAborted();
}

async function run(parameters: string[], options: ConvertOptions): Promise<void> {
  const child = spawn('qemu-img', parameters, {
    cwd: options.folder,
    argv0: options.name,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { PATH: process.env['PATH'], LC_ALL: 'C' },
  });
  const abort = () => child.kill('SIGKILL');
  options.signal.addEventListener('abort', abort);
  let words = '';
  child.stderr.on('data', (data: Buffer) => {
    words = `${words}${data.toString()}`.slice(-WORDS_LIMIT_CHARACTERS);
  });
  child.stdout.on('data', (data: Buffer) => {
    const percent = Number([...data.toString().matchAll(PROGRESS)].at(-1)?.[1] ?? 0);
    if (percent > 0) options.onProgress(percent);
  });
  try {
    // Guests go first.
    if (child.pid !== undefined) setPriority(child.pid, constants.priority.PRIORITY_LOW);
    await new Promise<void>((resolve, reject) => {
      child.once('error', (error) => reject(new Error(`qemu-img cannot be executed: ${error.message}`)));
      child.once('close', (code, signal) => {
        if (code === 0) resolve();
        else reject(new Error(`qemu-img ended with ${signal ?? `code ${code}`}: ${words.trim()}`));
      });
    });
  } finally {
    options.signal.removeEventListener('abort', abort);
  }
}
