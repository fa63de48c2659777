/** Creates Images and ISOs, from flags or from a file. */
import { copySpec, emptySpec, type Stored } from '../../api/http/imageitem.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { createNamed } from '../objects/create.ts';
import { type FileFlag, fileIn } from '../objects/fileflag.ts';
import { createdSentence, createFromFile } from '../objects/fromfile.ts';
import { inFlags } from '../objects/invalid.ts';
import { type Kind, report } from '../objects/kind.ts';
import { findNamed } from '../objects/named.ts';
import type { Terminal } from '../terminal.ts';
import { checkImageName } from './name.ts';

export interface CreateFlags extends FileFlag {
  /** Size of an empty disk, as a quantity. */
  readonly size?: string;
  readonly copyOf?: string;
  readonly reference?: string;
  readonly url?: string;
  readonly sha256?: string;
  readonly description?: string;
  readonly type?: 'arm64' | 'amd64';
}

const FLAG_BY_FIELD = {
  'metadata.name': 'the name',
  'spec.description': '--description',
  'spec.architecture': '--type',
  'spec.source.empty.size': '--size',
  'spec.source.registry.reference': '--reference',
  'spec.source.http.url': '--url',
  'spec.source.http.sha256': '--sha256',
};

/**
 * Creates one object from flags, or all objects of a file.
 *
 * @throws CommandError when flags contradict each other, or when the source of a copy is missing; ApiError.
 */
export async function create(
  terminal: Terminal,
  globals: Globals,
  kind: Kind<Stored>,
  { name, flags }: { name: string | undefined; flags: CreateFlags },
): Promise<void> {
  const file = fileIn(name, flags);
  if (file !== undefined) {
    await createFromFile(terminal, globals, kind, file);
    return;
  }
  check(name, kind, flags);
  await withCluster(terminal, globals, async (cluster) => {
    const { signal } = terminal;
    const metadata = { name, namespace: cluster.namespace };
    const spec = await specOf(cluster, kind, flags, signal);
    const made = createNamed(cluster, kind.type, { metadata, spec }, { signal });
    const objects = [await made.catch((error: unknown) => Promise.reject(inFlags(error, FLAG_BY_FIELD)))];
    await report(terminal, globals, { kind, objects, sentence: createdSentence(kind) });
  });
}

function check(
  name: string | undefined,
  { noun }: Kind<Stored>,
  { size, copyOf, reference, url, sha256, type }: CreateFlags,
): asserts name is string {
  if (name === undefined) {
    throw new CommandError(`Give the name of the ${noun}, or a file with -f`, EXIT.usage);
  }
  checkImageName(name);
  const sources = [size, copyOf, reference, url].filter((source) => source !== undefined);
  if (sources.length !== 1) {
    const empty = noun === 'image' ? '--size, ' : '';
    throw new CommandError(`Name one source: ${empty}--copy-of, --reference or --url`, EXIT.usage);
  }
  if ((url === undefined) !== (sha256 === undefined)) {
    throw new CommandError('Use --url and --sha256 together', EXIT.usage);
  }
  if (copyOf !== undefined && type !== undefined) {
    throw new CommandError(
      'Do not use --type with --copy-of, because a copy has the same architecture as its source',
      EXIT.usage,
    );
  }
}

async function specOf(
  cluster: Cluster,
  kind: Kind<Stored>,
  { size, copyOf, reference, url = '', sha256 = '', description, type }: CreateFlags,
  signal: AbortSignal,
): Promise<Stored['spec']> {
  if (copyOf !== undefined) {
    const source = await findNamed(cluster, kind, copyOf, signal);
    return copySpec(source, cluster.namespace, description);
  }
  if (size !== undefined) {
    return emptySpec({ size, description, type });
  }
  const source = reference === undefined ? { http: { url, sha256 } } : { registry: { reference } };
  return { description, architecture: type, source };
}
