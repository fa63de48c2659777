/** The note of a copy under way. It is written before the copy makes its first file, so that the next agent can clean up. */
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { writeWhole } from '../../../base/files.ts';
import { isMissing } from '../../../base/errors.ts';

/**
 * Name of the note. It is beside the state file, where the hypervisor may not write, because the agent removes the file that the
 * note names.
 */
const NAME = 'copy.json';

const noteSchema = z.object({
  /** Path of the incomplete copy; undefined once the copy is complete. */
  target: z.string().optional(),
  /** Whether the guest's file systems may be frozen. */
  frozen: z.boolean(),
  /** Number of requests to thaw that the guest did not confirm, to all agents since the freeze. */
  thawsFailed: z.number().int().min(0).default(0),
});
export type CopyNote = z.infer<typeof noteSchema>;

export async function readCopyNote(folder: string): Promise<CopyNote | undefined> {
  try {
    return noteSchema.parse(JSON.parse(await readFile(join(folder, NAME), 'utf8')));
  } catch (error) {
    if (isMissing(error)) {
      return undefined;
    }
    throw error;
  }
}

export async function writeCopyNote(folder: string, note: CopyNote): Promise<void> {
  await writeWhole(join(folder, NAME), JSON.stringify(note));
}

export async function removeCopyNote(folder: string): Promise<void> {
  await rm(join(folder, NAME), { force: true });
}
