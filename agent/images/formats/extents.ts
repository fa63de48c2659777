/** Where a sparse file has data. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { z } from 'zod';

/** What is kept of the messages of a failed run. */
const MESSAGE_BYTES = 4096;

const extentSchema = z.object({ start: z.number(), length: z.number(), data: z.boolean() });

export interface Extent {
  start: number;
  length: number;
}

/** The extents of a raw disk that are not holes, in order; one at a time, as a file may have any number. Throws when it cannot be read. */
export async function* dataExtents(
  path: string,
  signal: AbortSignal,
): AsyncGenerator<Extent, void, undefined> {
  const child = spawn('qemu-img', ['map', '-f', 'raw', '--output=json', path], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { PATH: process.env['PATH'], LC_ALL: 'C' },
    signal,
    killSignal: 'SIGKILL',
  });
  const closed = once(child, 'close');
  let message = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    message = (message + text).slice(-MESSAGE_BYTES);
  });
  try {
    // A list in JSON with one extent in each line.
    for await (const line of createInterface({ input: child.stdout })) {
      const text = line.replace(/^\[|[,\]]$/g, '').trim();
      if (text === '') continue;
      const { start, length, data } = extentSchema.parse(JSON.parse(text));
      if (data) yield { start, length };
    }
    const [code] = await closed;
    if (code !== 0) throw new Error(`qemu-img map ended with ${code}: ${message.trim()}`);
  } finally {
    child.kill('SIGKILL');
    await closed.catch(() => undefined);
  }
}
