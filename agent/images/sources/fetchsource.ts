/** What of a download is noted beside it, so that it can be gone on with. */
import { readFile, writeFile } from 'node:fs/promises';
import type { Dispatcher } from 'undici';
import * as z from 'zod';
import { isMissing } from '../../../base/errors.ts';

/** Kept beside what has come of a file, for the next call. */
const sourceSchema = z.object({
  /** ETag or time of change: the rest is taken only of the same version. */
  validator: z.string().optional(),
  total: z.number().optional(),
});
export type Source = z.infer<typeof sourceSchema>;

/** A weak ETag says nothing of single bytes. */
export function sourceOf(headers: Dispatcher.ResponseData['headers']): Source {
  const { etag, 'last-modified': changed, 'content-length': length } = headers;
  const validator = typeof etag === 'string' && !etag.startsWith('W/') ? etag : changed;
  return {
    ...(typeof validator === 'string' ? { validator } : {}),
    ...(typeof length === 'string' ? { total: Number(length) } : {}),
  };
}

export function sourceFile(path: string): string {
  return `${path}.source`;
}

/** What cannot be read is as good as not there: the digest decides in the end. */
export async function readSource(path: string): Promise<Source> {
  try {
    return sourceSchema.parse(JSON.parse(await readFile(sourceFile(path), 'utf8')));
  } catch (error) {
    if (isMissing(error) || error instanceof SyntaxError || error instanceof z.ZodError) {
      return {};
    }
    throw error;
  }
}

export async function writeSource(path: string, source: Source): Promise<void> {
  await writeFile(sourceFile(path), JSON.stringify(source), { mode: 0o600 });
}
