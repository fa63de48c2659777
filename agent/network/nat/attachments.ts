/** Stores the wanted attachments of machines to the NAT network in one file, so that they outlive the agent. */
import { mkdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import { writeWhole } from '../../../base/files.ts';
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

const fileSchema = z.object({ attachments: z.array(attachmentSchema) });

export class AttachmentFile {
  readonly #path: string;

  constructor(directory: string) {
    this.#path = join(directory, 'attachments.json');
  }

  /**
   * Reads the attachments; undefined before the first {@link save}. An invalid file is an error, because without its content machines
   * that run could lose their network.
   *
   * @throws Error when the file is invalid.
   */
  async load(): Promise<Attachment[] | undefined> {
    const text = await undefinedIf(isMissing, readFile(this.#path, 'utf8'));
    return text === undefined ? undefined : fileSchema.parse(JSON.parse(text)).attachments;
  }

  async save(attachments: Attachment[]): Promise<void> {
    await mkdir(join(this.#path, '..'), { recursive: true });
    await writeWhole(this.#path, JSON.stringify({ attachments }, undefined, 1), 0o644);
  }

  async remove(): Promise<void> {
    await rm(this.#path, { force: true });
  }
}
