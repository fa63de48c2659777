/** Writes a support bundle: an archive that describes the state of Berth and contains no secrets. */
import { open, rm } from 'node:fs/promises';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import {
  EMULATORS,
  IMAGE_CACHE_ENTRIES,
  IMAGES,
  ISOS,
  SERVERS,
  VM_CONFIGS,
  VMS,
} from '../../api/v1alpha1/resources.ts';
import { VERSION } from '../../api/v1alpha1/version.ts';
import { codeOf, messageOf } from '../../base/errors.ts';
import { apiErrorFrom, isForbidden } from '../../kube/errors.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { print } from '../output.ts';
import { progressLine } from '../progress.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';
import { Redactor } from './redact.ts';
import { inParallel } from '../../base/concurrency.ts';
import { HOST_KEY, HOST_VALUE, SYSTEM_NAMESPACE, WORKLOAD_LABEL } from '../../api/v1alpha1/names.ts';
import { type KubeClient, query } from '../../kube/client.ts';
import { type Event, EVENTS, NODES, type Pod, PODS } from '../../kube/core.ts';
import { type KubeObject, pathOf, type Resource } from '../../kube/objects.ts';
import { isServed } from '../namespace.ts';
import { DEPLOYMENTS } from '../versions.ts';

export interface TarFile {
  /** Path of at most 100 ASCII characters. */
  readonly name: string;
  readonly content: Buffer;
}

/** Largest number of reads at the same time. More reads would make the API server slow for others. */
const WIDTH = 4;
/** Number of last lines that are read from each log. */
const LOG_LINES = 5_000;
/**
 * Largest numbers of Pods whose logs are read, and of hosts whose metrics are read. The first Pods and hosts are enough to show a fault,
 * even in a large cluster.
 */
const PODS_WITH_LOGS = 50;
const HOSTS_WITH_METRICS = 50;

const COMPONENT = 'app.kubernetes.io/component';
/** Selects the Deployment of the operator. Its namespace can have any name. */
const OPERATOR_SELECTOR = `app.kubernetes.io/name=berth,${COMPONENT}=operator`;
/** Components whose logs are read first, because each of them works for the whole cluster. */
const CENTRAL = ['operator', 'server'];

/** Kinds that belong to no namespace. Kubernetes keeps their Events in the namespace `default`, together with Events of other programs. */
const WITHOUT_NAMESPACE: ReadonlySet<string | undefined> = new Set([NODES.kind, SERVERS.kind]);
const NAMESPACED: readonly Resource<KubeObject>[] = [
  VMS,
  VM_CONFIGS,
  IMAGES,
  ISOS,
  IMAGE_CACHE_ENTRIES,
  EMULATORS,
];

interface Text {
  readonly name: string;
  readonly text: string;
}

interface TextSource {
  /** Description of the source in messages, for example `metrics of host h1`. */
  readonly part: string;
  /** Name of the file. */
  readonly name: string;
  readonly path: string;
}

/**
 * Returns the files of the bundle, without secrets. `namespace` limits the objects of users to one namespace. If it is undefined, the
 * objects of all namespaces are read.
 */
export async function collect(
  reader: Reader,
  namespace: string | undefined,
  signal: AbortSignal,
): Promise<TarFile[]> {
  const redactor = new Redactor();
  const lists: { name: string; items: unknown }[] = [];
  const add = (name: string, items: readonly KubeObject[] | undefined) => {
    if (items !== undefined) {
      lists.push({ name: `objects/${name}.json`, items: items.map((item) => redactor.fields(item)) });
    }
  };
  const system = await systemNamespace(reader);
  const namespaces = new Set([system, namespace]);
  for (const type of NAMESPACED) {
    const objects = await reader.objects(type, { namespace });
    objects?.forEach(({ metadata }) => namespaces.add(metadata.namespace));
    add(type.plural, objects);
  }
  // Users who may read all namespaces see the Events of all programs in the cluster. The bundle has only the Events of Berth and of Nodes.
  const isWanted = ({ metadata, regarding }: Event) =>
    namespaces.has(metadata.namespace) ||
    isServed(metadata.namespace ?? '') ||
    WITHOUT_NAMESPACE.has(regarding.kind);
  add(EVENTS.plural, await reader.objects(EVENTS, { namespace }, isWanted));
  add('machine-pods', await reader.objects(PODS, { namespace, labelSelector: WORKLOAD_LABEL }));
  add(SERVERS.plural, await reader.objects(SERVERS));
  const nodes = await reader.objects(NODES, { labelSelector: `${HOST_KEY}=${HOST_VALUE}` });
  const pods = (await reader.objects(PODS, { namespace: system }))?.toSorted((a, b) => rankOf(a) - rankOf(b));
  add('nodes', nodes);
  add('system-pods', pods);
  if (namespace !== undefined) {
    add('system-events', await reader.objects(EVENTS, { namespace: system }));
  }
  const hosts = (nodes ?? []).map(({ metadata }) => metadata.name);
  noteRest(reader, 'logs of Pods', pods ?? [], PODS_WITH_LOGS);
  noteRest(reader, 'metrics of hosts', hosts, HOSTS_WITH_METRICS);
  const texts = await readTexts(reader, [...logs(pods ?? []), ...metrics(hosts)], signal);
  // The redactor now knows all values that it removed from objects, so it also removes them from texts.
  return [
    ...lists.map(({ name, items }) => fileOf(name, JSON.stringify(redactor.texts(items), undefined, 1))),
    ...texts.map(({ name, text }) => fileOf(name, redactor.text(text))),
    fileOf('report.json', JSON.stringify(redactor.texts(reportOf(reader, namespace)), undefined, 1)),
  ];
}

/** Returns the namespace of the installation, in which the operator, the server and the agents run. */
async function systemNamespace(reader: Reader): Promise<string> {
  const [operator] = (await reader.objects(DEPLOYMENTS, { labelSelector: OPERATOR_SELECTOR })) ?? [];
  return operator?.metadata.namespace ?? SYSTEM_NAMESPACE;
}

/** Returns 0 for Pods of the operator and the server, and 1 for others. A large cluster has more agents than logs are read. */
function rankOf({ metadata: { labels } }: Pod): number {
  return CENTRAL.includes(labels?.[COMPONENT] ?? '') ? 0 : 1;
}

function reportOf({ unread }: Reader, namespace: string | undefined) {
  return { namespace: namespace ?? 'all', made: new Date().toISOString(), unread };
}

function noteRest(reader: Reader, part: string, all: readonly unknown[], limit: number): void {
  if (all.length > limit) {
    reader.note(part, `Only the first ${limit} of ${all.length} were read`);
  }
}

async function readTexts(
  reader: Reader,
  sources: readonly TextSource[],
  signal: AbortSignal,
): Promise<Text[]> {
  const texts: Text[] = [];
  await inParallel(sources, WIDTH, signal, async ({ part, name, path }) => {
    const text = await reader.text(part, path);
    if (text !== undefined) {
      texts.push({ name, text });
    }
  });
  return texts;
}

/**
 * Returns the sources of the logs of the operator, the server and the agents. The consoles of guests are not read, because they belong to
 * users.
 */
function logs(pods: readonly Pod[]): TextSource[] {
  return pods.slice(0, PODS_WITH_LOGS).flatMap((pod, index) =>
    pod.spec.containers.flatMap(({ name: container }) => {
      const status = pod.status?.containerStatuses?.find(({ name }) => name === container);
      const runs = (status?.restartCount ?? 0) > 0 ? [false, true] : [false];
      return runs.map((previous) => {
        // There is no `limitBytes`, because it would leave out the newest of these lines.
        const options = { container, previous, tailLines: LOG_LINES };
        const name = `${short(pod.metadata.name)}-${short(container)}${previous ? '-previous' : ''}`;
        return {
          part: `log of container ${container} in Pod ${pod.metadata.name}`,
          name: `logs/${index}-${name}.log`,
          path: `${pathOf(PODS, pod.metadata, 'log')}${query(options)}`,
        };
      });
    }),
  );
}

/**
 * Returns the sources of the metrics of hosts. The metrics of the operator are left out. The operator's Pod gives them only to requests
 * with a token, and the API server does not forward a token to a Pod.
 */
function metrics(hosts: readonly string[]): TextSource[] {
  return hosts.slice(0, HOSTS_WITH_METRICS).map((host, index) => ({
    part: `metrics of host ${host}`,
    name: `metrics/host-${index}-${short(host)}.txt`,
    path: `/api/v1/nodes/${host}/proxy/metrics`,
  }));
}

/**
 * Returns only the first characters of a Pod's or host's name, because file names in the archive must be short. File names stay different,
 * because they also contain a number.
 */
function short(name: string): string {
  return name.slice(0, 30);
}

function fileOf(name: string, text: string): TarFile {
  return { name: `berth-support/${name}`, content: Buffer.from(text, 'utf8') };
}

/** Largest number of objects that one read returns. The JSON of 2,000 VMs is about 10 MB long. */
const OBJECTS = 2_000;
/** Largest size of one text in the bundle. A text is a log or the metrics of a host. */
const TEXT_BYTES = 1024 * 1024;
/**
 * Number of bytes after which the read of one text ends. Usual logs are shorter. The limit exists because a hostile host could send bytes
 * without end.
 */
const READ_BYTES = 16 * TEXT_BYTES;
/** Largest size of all texts and objects. The bundle must fit into memory and into an email. */
const TOTAL_BYTES = 64 * 1024 * 1024;
/** Time limit for one part. A host that does not answer must not use up the time for other parts. */
const PART_MILLISECONDS = 15_000;

interface Unread {
  readonly part: string;
  readonly cause: string;
}

export class Reader {
  readonly #client: KubeClient;
  readonly #signal: AbortSignal;
  readonly unread: Unread[] = [];
  #bytes = 0;

  /** When `signal` aborts, all reads end. */
  constructor(client: KubeClient, signal: AbortSignal) {
    this.#client = client;
    this.#signal = signal;
  }

  note(part: string, cause: unknown): void {
    this.unread.push({ part, cause: messageOf(cause) });
  }

  /**
   * Reads the objects of a kind, and returns the objects for which `isWanted` returns true. If `namespace` is given, reads only the objects
   * of this namespace. The result is undefined if the objects could not be read.
   */
  async objects<T extends KubeObject>(
    type: Resource<T>,
    options: { namespace?: string | undefined; labelSelector?: string } = {},
    isWanted: (object: T) => boolean = () => true,
  ): Promise<T[] | undefined> {
    const part = `${type.plural}${options.namespace === undefined ? '' : ` in namespace ${options.namespace}`}`;
    return await this.#noted(part, async (signal) => {
      const found: T[] = [];
      for await (const { items } of this.#client.pages(type, { ...options, signal })) {
        const wanted = items.filter(isWanted);
        found.push(...wanted);
        this.#count(JSON.stringify(wanted).length);
        if (found.length > OBJECTS) {
          this.note(part, `Only the first ${OBJECTS} objects were read`);
          break;
        }
      }
      return found.slice(0, OBJECTS);
    });
  }

  /**
   * Returns the text at the path. If it is longer than {@link TEXT_BYTES}, the result contains only its last lines, because the newest lines
   * of a log are the last ones. The result is undefined if the text could not be read.
   */
  async text(part: string, path: string): Promise<string | undefined> {
    return await this.#noted(part, async (signal) => {
      const pieces: Buffer[] = [];
      const enough = new AbortController();
      let bytes = 0;
      let kept = 0;
      const onData = (piece: Buffer) => {
        bytes += piece.length;
        kept += piece.length;
        pieces.push(piece);
        for (let [first] = pieces; first && kept - first.length > TEXT_BYTES; [first] = pieces) {
          kept -= first.length;
          pieces.shift();
        }
        if (bytes > READ_BYTES) {
          enough.abort();
        }
      };
      try {
        const joined = AbortSignal.any([signal, enough.signal]);
        const { status, body } = await this.#client.raw('GET', path, { signal: joined, onData });
        if (status !== 200) {
          throw apiErrorFrom(body, status);
        }
      } catch (error) {
        if (!enough.signal.aborted) {
          throw error;
        }
      }
      const text = Buffer.concat(pieces).subarray(-TEXT_BYTES);
      this.#count(text.length);
      if (bytes === text.length) {
        return text.toString('utf8');
      }
      this.note(part, `Only the last ${TEXT_BYTES} bytes are kept`);
      // The rest of a cut line is left out. It could be a part of a secret, which nobody recognizes without its beginning.
      return text.subarray(text.indexOf('\n') + 1).toString('utf8');
    });
  }

  async #noted<T>(part: string, read: (signal: AbortSignal) => Promise<T>): Promise<T | undefined> {
    try {
      this.#signal.throwIfAborted();
      return await read(AbortSignal.any([this.#signal, AbortSignal.timeout(PART_MILLISECONDS)]));
    } catch (error) {
      this.note(part, error);
      return undefined;
    }
  }

  #count(bytes: number): void {
    this.#bytes += bytes;
    if (this.#bytes > TOTAL_BYTES) {
      throw new Error(`The bundle has reached its limit of ${TOTAL_BYTES} bytes`);
    }
  }
}

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
