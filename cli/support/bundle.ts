/** Writes a support bundle. A support bundle is an archive that describes the state of Berth and contains no secrets. */
import { open, rm } from 'node:fs/promises';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { VERSION } from '../../api/v1alpha1/version.ts';
import { codeOf, messageOf } from '../../base/errors.ts';
import { isForbidden } from '../../kube/errors.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { print } from '../output.ts';
import { progressLine } from '../progress.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';
import { collect } from './collect.ts';
import { Reader } from './reader.ts';
import { Redactor } from './redact.ts';
import { tarOf } from './tar.ts';

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
  { client, namespace }: Cluster,
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
