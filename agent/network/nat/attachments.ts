/** The attachments that should be, kept in one file so that they outlive the agent. */
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { machinePortSchema } from '../../../api/v1alpha1/machine.ts';

const attachmentSchema = z.object({
  uid: z.string(),
  macAddress: z.string(),
  address: z.string(),
  tap: z.string(),
  ports: z.array(machinePortSchema),
  owner: z.object({ uid: z.number().int(), gid: z.number().int() }).optional(),
});

export type Attachment = z.infer<typeof attachmentSchema>;

const fileSchema = z.object({
  /** What net.ipv4.ip_forward was before the first set-up, put back at the end. */
  forwardingBefore: z.boolean(),
  attachments: z.array(attachmentSchema),
});

export type SavedState = z.infer<typeof fileSchema>;

export class AttachmentFile {
  readonly #path: string;

  constructor(directory: string) {
    this.#path = join(directory, 'attachments.json');
  }

  /** undefined before the first {@link save}. Throws on a file that is not ours: guessing would cut off machines. */
  async load(): Promise<SavedState | undefined> {
    let text: string;
    try {
      text = await readFile(this.#path, 'utf8');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw error;
    }
    return fileSchema.parse(JSON.parse(text));
  }

  async save(state: SavedState): Promise<void> {
    const temporary = `${this.#path}.new`;
    await mkdir(join(this.#path, '..'), { recursive: true });
    await writeFile(temporary, JSON.stringify(state, undefined, 1), { flush: true, mode: 0o644 });
    await rename(temporary, this.#path);
  }

  async remove(): Promise<void> {
    await rm(this.#path, { force: true });
  }
}
