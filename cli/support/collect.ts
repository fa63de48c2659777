/** Collects the content of a support bundle: objects, Events, logs of Berth's own Pods, and metrics. Secrets are never read. */
import { inParallel } from '../../base/concurrency.ts';
import { HOST_KEY, HOST_VALUE, SYSTEM_NAMESPACE, WORKLOAD_LABEL } from '../../api/v1alpha1/names.ts';
import {
  EMULATORS,
  IMAGE_CACHE_ENTRIES,
  IMAGES,
  ISOS,
  SERVERS,
  VM_CONFIGS,
  VMS,
} from '../../api/v1alpha1/resources.ts';
import { type KubeClient, query } from '../../kube/client.ts';
import { type Event, EVENTS, NODES, type Pod, PODS } from '../../kube/core.ts';
import { type KubeObject, pathOf, type Resource } from '../../kube/objects.ts';
import { isServed } from '../namespace.ts';
import { DEPLOYMENTS } from '../versions.ts';
import { Redactor } from './redact.ts';
import { messageOf } from '../../base/errors.ts';
import { apiErrorFrom } from '../../kube/errors.ts';

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
const WITHOUT_NAMESPACE: ReadonlySet<string | undefined> = new Set([
  NODES.kind,
  IMAGE_CACHE_ENTRIES.kind,
  SERVERS.kind,
]);
const NAMESPACED: readonly Resource<KubeObject>[] = [VMS, VM_CONFIGS, IMAGES, ISOS, EMULATORS];

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
  add(IMAGE_CACHE_ENTRIES.plural, await reader.objects(IMAGE_CACHE_ENTRIES));
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
