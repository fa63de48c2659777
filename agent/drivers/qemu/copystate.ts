/** What a copy under way leaves when the agent dies, written down before it is made. */
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { writeWhole } from '../../../base/files.ts';
import { isMissing } from '../../../base/errors.ts';

/** Beside the state file, where the hypervisor may not write: what it names is removed. */
const NAME = 'copy.json';

const noteSchema = z.object({
  /** Not complete; undefined once it is. */
  target: z.string().optional(),
  /** The guest's file systems may be frozen. */
  frozen: z.boolean(),
  /** How often the guest was asked to thaw them and did not say that it did, by all agents since it was frozen. */
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
