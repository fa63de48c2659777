/** Writes a support bundle. A support bundle is an archive that describes the state of Berth and contains no secrets. */
import { open, rm } from 'node:fs/promises';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { VERSION } from '../../api/v1alpha1/version.ts';
import { codeOf, messageOf } from '../../base/errors.ts';
import { isForbidden } from '../../kube/errors.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { print } from '../output.ts';
import { progressLine } from '../progress.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';
import { collect, Reader, type TarFile } from './collect.ts';
import { Redactor } from './redact.ts';

/** Time limit for the whole bundle. The bundle names the parts that could not be read in this time. */
const LIMIT_MILLISECONDS = 120_000;
/** Mode of the file. Only the user can read the bundle. */
const MODE = 0o600;

/**
 * Writes the bundle to a new file.
 *
 * @throws CommandError when the file exists or cannot be written; ApiError when the user may not read VMs.
 */
export async function supportBundle(
  terminal: Terminal,
  globals: Globals,
  { file = defaultName() }: { file?: string | undefined },
): Promise<void> {
  await withCluster(terminal, globals, async (cluster) => {
    const namespace = await scope(cluster, globals, terminal.signal);
    const handle = await create(file);
    const progress = progressLine(terminal);
    try {
      progress.show('Reading objects, logs and metrics');
      const late = AbortSignal.timeout(LIMIT_MILLISECONDS);
      const reader = new Reader(cluster.client, AbortSignal.any([terminal.signal, late]));
      const files = await collect(reader, namespace, terminal.signal);
      terminal.signal.throwIfAborted();
      const archive = await promisify(gzip)(tarOf(files, Math.floor(Date.now() / 1000)));
      await handle.writeFile(archive);
      progress.end();
      await tell(terminal, globals, { file, bytes: archive.length, unread: reader.unread });
    } catch (error) {
      progress.end();
      await rm(file, { force: true });
      throw error;
    } finally {
      await handle.close();
    }
  });
}

function defaultName(): string {
  return `berth-support-${new Date().toISOString().slice(0, 19).replaceAll(/[-:]/g, '')}.tar.gz`;
}

/**
 * Returns the namespace to read. If no flag names a namespace and the user may read all namespaces, the result is undefined. The function
 * reads VMs to find out what the user may read.
 *
 * @throws ApiError when the user may not read the VMs of the namespace, or when the token is not valid.
 */
async function scope(
  { client, namespace }: UserCluster,
  globals: Globals,
  signal: AbortSignal,
): Promise<string | undefined> {
  if (globals.namespace !== undefined) {
    await client.pages(VMS, { namespace, signal }).next();
    return namespace;
  }
  try {
    await client.pages(VMS, { signal }).next();
    return undefined;
  } catch (error) {
    if (!isForbidden(error)) {
      throw error;
    }
    await client.pages(VMS, { namespace, signal }).next();
    return namespace;
  }
}

async function create(file: string) {
  try {
    return await open(file, 'wx', MODE);
  } catch (error) {
    throw codeOf(error) === 'EEXIST'
      ? new CommandError(`The file ${file} exists. Name another one with --file`, EXIT.usage)
      : new CommandError(`The file cannot be written: ${messageOf(error)}. Name another one with --file`);
  }
}

interface Result {
  readonly file: string;
  readonly bytes: number;
  readonly unread: Reader['unread'];
}

async function tell(terminal: Terminal, { output }: Globals, { file, bytes, unread }: Result): Promise<void> {
  const redactor = new Redactor();
  const shown = unread.map(({ part, cause }) => ({ part, cause: redactor.text(cause) }));
  if (output !== 'table' && output !== 'wide') {
    const row = { name: file, bytes, version: VERSION, unread: shown };
    await print(terminal, output, { rows: [row], columns: [], itemOf: (item) => item });
    return;
  }
  for (const { part, cause } of shown) {
    terminal.err(`warning: not in the bundle: ${printable(`${part}: ${cause}`)}\n`);
  }
  terminal.out(`Wrote ${file} (${Math.ceil(bytes / 1024)} KiB). Read it before you send it to others\n`);
}

const BLOCK = 512;
const NAME_LENGTH = 100;
/** Offset and length of the checksum in a header. The checksum is computed over a header that has spaces at this place. */
const CHECKSUM = { at: 148, length: 8 } as const;

/**
 * Returns the archive. All files have the mode 0600. `seconds` is the modification time of all files, in seconds since the epoch.
 *
 * @throws RangeError when a name is too long.
 */
export function tarOf(files: readonly TarFile[], seconds: number): Buffer {
  const parts = files.flatMap(({ name, content }) => [
    headerOf(name, content.length, seconds),
    content,
    Buffer.alloc((BLOCK - (content.length % BLOCK)) % BLOCK),
  ]);
  return Buffer.concat([...parts, Buffer.alloc(2 * BLOCK)]);
}

function headerOf(name: string, size: number, seconds: number): Buffer {
  if (name.length > NAME_LENGTH) {
    throw new RangeError(`the name ${name} is too long for a tar archive`);
  }
  const header = Buffer.alloc(BLOCK);
  header.write(name, 0, 'latin1');
  header.write('0000600\0', 100, 'latin1');
  header.write('0000000\0', 108, 'latin1');
  header.write('0000000\0', 116, 'latin1');
  header.write(`${size.toString(8).padStart(11, '0')}\0`, 124, 'latin1');
  header.write(`${seconds.toString(8).padStart(11, '0')}\0`, 136, 'latin1');
  header.write(' '.repeat(CHECKSUM.length), CHECKSUM.at, 'latin1');
  header.write('0', 156, 'latin1');
  header.write('ustar\x0000', 257, 'latin1');
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, CHECKSUM.at, 'latin1');
  return header;
}
