/**
 * Stores in files which machines and programs must be attached to the NAT network. So the agent still knows them after a restart. Programs
 * in network namespaces have a separate file. Earlier releases of the agent neither read nor write this separate file, so it survives a
 * downgrade and a later upgrade.
 */
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

/** Data of a guest that is attached to the NAT network through a tap of this host. */
export type Attachment = z.infer<typeof attachmentSchema>;

const namespaceSchema = z.object({
  uid: z.string(),
  address: z.string(),
  device: z.string(),
  exposedPort: z.number().int(),
  /** Uid of the only machine that may connect to the program; undefined if no machine may connect. */
  peer: z.string().optional(),
  ports: z.array(machinePortSchema),
});

/** Data of a program, for example an emulator, that is attached to the NAT network through a network namespace of its own. */
export type NamespaceAttachment = z.infer<typeof namespaceSchema>;

/** All attachments that the network must have: those of machines and those of programs in network namespaces. */
export interface WantedAttachments {
  machines: readonly Attachment[];
  namespaces: readonly NamespaceAttachment[];
}

const machinesSchema = z.object({ attachments: z.array(attachmentSchema) });
const namespacesSchema = z.object({ namespaces: z.array(namespaceSchema) });

export class AttachmentFiles {
  readonly #machines: string;
  readonly #namespaces: string;

  constructor(directory: string) {
    this.#machines = join(directory, 'attachments.json');
    this.#namespaces = join(directory, 'namespaces.json');
  }

  /**
   * Reads the attachments. A missing file counts as empty. An invalid file must not count as empty, because otherwise running machines
   * could lose their network.
   *
   * @throws Error when a file is invalid.
   */
  async load(): Promise<WantedAttachments> {
    const [machines, namespaces] = await Promise.all([
      read(this.#machines, machinesSchema),
      read(this.#namespaces, namespacesSchema),
    ]);
    return { machines: machines?.attachments ?? [], namespaces: namespaces?.namespaces ?? [] };
  }

  async save({ machines, namespaces }: WantedAttachments): Promise<void> {
    await mkdir(join(this.#machines, '..'), { recursive: true });
    await writeRecord(this.#machines, { attachments: machines });
    // If no program has a network namespace, the file with the attachments of namespaces is removed. The host then has the same files as
    // with an earlier release of the agent.
    await (namespaces.length > 0
      ? writeRecord(this.#namespaces, { namespaces })
      : removeRecord(this.#namespaces));
  }

  async remove(): Promise<void> {
    await removeRecord(this.#machines);
    await removeRecord(this.#namespaces);
  }
}

async function read<T>(path: string, schema: z.ZodType<T>): Promise<T | undefined> {
  const text = await undefinedIf(isMissing, readFile(path, 'utf8'));
  return text === undefined ? undefined : schema.parse(JSON.parse(text));
}

async function writeRecord(path: string, content: unknown): Promise<void> {
  await writeWhole(path, JSON.stringify(content, undefined, 1), 0o644);
}

async function removeRecord(path: string): Promise<void> {
  await rm(path, { force: true });
}
