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
import { query } from '../../kube/client.ts';
import { type Event, EVENTS, NODES, type Pod, PODS } from '../../kube/core.ts';
import { type KubeObject, pathOf, type Resource } from '../../kube/objects.ts';
import { isServed } from '../namespace/served.ts';
import { DEPLOYMENTS } from '../versions.ts';
import type { Reader } from './reader.ts';
import { Redactor } from './redact.ts';
import type { TarFile } from './tar.ts';

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
