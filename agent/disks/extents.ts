/** Where a sparse file has data. */
import { createInterface } from 'node:readline';
import * as z from 'zod';
import { startQemuImg } from './qemuimg.ts';

const extentSchema = z.object({ start: z.number(), length: z.number(), data: z.boolean() });

export interface Extent {
  start: number;
  length: number;
}

/** The extents of a raw disk that are not holes, in order; one at a time, as a file may have any number. @throws Error when it cannot be read. */
export async function* dataExtents(
  path: string,
  signal: AbortSignal,
): AsyncGenerator<Extent, void, undefined> {
  const { output, ended, end } = startQemuImg(['map', '-f', 'raw', '--output=json', path], { signal });
  try {
    // A list in JSON with one extent in each line.
    for await (const line of createInterface({ input: output })) {
      const text = line.replace(/^\[|[,\]]$/g, '').trim();
      if (text === '') {
        continue;
      }
      const { start, length, data } = extentSchema.parse(JSON.parse(text));
      if (data) {
        yield { start, length };
      }
    }
    await ended;
  } finally {
    end();
    await ended.catch(() => undefined);
  }
}
