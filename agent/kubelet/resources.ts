/** Serves `/metrics/resource` as a kubelet does: processor time and memory of the host, its Pods and their containers. */
import type { Logger } from 'pino';
import { MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { PodHost } from '../pods/host.ts';
import type { Runtimes } from '../pods/machine.ts';
import { hostUsage, type RunningMachine, type Usage, UsageReader } from '../processes/usage.ts';

/**
 * Shortest time between two measurements. All requests in between get the last one. Metrics-server asks every 15 s by default and every 10 s
 * at most, so each of its requests gets a new measurement.
 */
const MEASURE_MILLISECONDS = 5_000;
/** Format of the answer, as a kubelet names it. */
export const RESOURCE_CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8';
const MILLISECONDS_PER_SECOND = 1_000;

/** A running machine, which is the container {@link MACHINE_CONTAINER} of its Pod. Berth's Pods have no other container that runs. */
interface RunningPod extends RunningMachine {
  namespace: string;
  pod: string;
  /** Start of the machine, in RFC 3339. */
  startedAt: string | undefined;
}

type MeasuredPod = RunningPod & Usage;

interface Measurement {
  /** Time of the measurement in milliseconds since the epoch. */
  at: number;
  host: Usage;
  pods: readonly MeasuredPod[];
}

type Sample = [labels: string, value: number];

/** Metric of a kubelet, with the kubelet's name and help text. */
interface Family {
  name: string;
  type: 'counter' | 'gauge';
  help: string;
  /** Whether each sample states the time of the measurement. */
  isTimed: boolean;
  samples: (measurement: Measurement) => readonly Sample[];
}

const FAMILIES: readonly Family[] = [
  {
    name: 'container_cpu_usage_seconds_total',
    type: 'counter',
    help: 'Cumulative cpu time consumed by the container in core-seconds',
    isTimed: true,
    samples: ({ pods }) => pods.map((pod) => [labelsOfContainer(pod), pod.cpuSeconds]),
  },
  {
    name: 'container_memory_working_set_bytes',
    type: 'gauge',
    help: 'Current working set of the container in bytes',
    isTimed: true,
    samples: ({ pods }) => pods.map((pod) => [labelsOfContainer(pod), pod.workingSetBytes]),
  },
  {
    name: 'container_start_time_seconds',
    type: 'gauge',
    help: 'Start time of the container since unix epoch in seconds',
    isTimed: false,
    samples: ({ pods }) =>
      pods.flatMap((pod) =>
        pod.startedAt === undefined
          ? []
          : [[labelsOfContainer(pod), Date.parse(pod.startedAt) / MILLISECONDS_PER_SECOND]],
      ),
  },
  {
    name: 'node_cpu_usage_seconds_total',
    type: 'counter',
    help: 'Cumulative cpu time consumed by the node in core-seconds',
    isTimed: true,
    samples: ({ host }) => [['', host.cpuSeconds]],
  },
  {
    name: 'node_memory_working_set_bytes',
    type: 'gauge',
    help: 'Current working set of the node in bytes',
    isTimed: true,
    samples: ({ host }) => [['', host.workingSetBytes]],
  },
  {
    name: 'pod_cpu_usage_seconds_total',
    type: 'counter',
    help: 'Cumulative cpu time consumed by the pod in core-seconds',
    isTimed: true,
    samples: ({ pods }) => pods.map((pod) => [labelsOfPod(pod), pod.cpuSeconds]),
  },
  {
    name: 'pod_memory_working_set_bytes',
    type: 'gauge',
    help: 'Current working set of the pod in bytes',
    isTimed: true,
    samples: ({ pods }) => pods.map((pod) => [labelsOfPod(pod), pod.workingSetBytes]),
  },
];

export interface ResourceOptions {
  host: Pick<PodHost, 'records'>;
  machines: Runtimes;
  logger: Logger;
}

/** Measures at the first request, and then at most once in 5 s. Without requests, nothing is measured. */
export class ResourceMetrics {
  readonly #options: ResourceOptions;
  readonly #usage = new UsageReader();
  #last: { startedAt: number; text: Promise<string> } | undefined;

  constructor(options: ResourceOptions) {
    this.#options = options;
  }

  /** Returns the metrics in the text format of Prometheus. After a failed measurement, only `resource_scrape_error` is there. */
  async text(): Promise<string> {
    const now = performance.now();
    if (this.#last === undefined || now - this.#last.startedAt >= MEASURE_MILLISECONDS) {
      this.#last = { startedAt: now, text: this.#measuredText() };
    }
    return await this.#last.text;
  }

  async #measuredText(): Promise<string> {
    try {
      const measurement = await this.#measure();
      return FAMILIES.map((family) => textOfFamily(family, measurement)).join('') + scrapeError(0);
    } catch (error) {
      this.#options.logger.error(
        { err: error },
        'The processor time and the memory of this host and its machines could not be measured',
      );
      return scrapeError(1);
    }
  }

  async #measure(): Promise<Measurement> {
    const running = this.#running();
    const at = Date.now();
    const [host, usages] = await Promise.all([hostUsage(), this.#usage.machines(running)]);
    const pods = running.flatMap((pod) => {
      const usage = usages.get(pod.uid);
      return usage === undefined ? [] : [{ ...pod, ...usage }];
    });
    return { at, host, pods };
  }

  #running(): RunningPod[] {
    const { host, machines } = this.#options;
    return host.records.list().flatMap((record) => {
      const { state, folder } = machines.runtime(record);
      const [namespace = '', pod = ''] = record.key.split('/');
      return state.kind === 'running'
        ? [{ uid: folder.uid, pid: state.pid, namespace, pod, startedAt: record.startedAt }]
        : [];
    });
  }
}

/** Returns the family in the text format of Prometheus; empty if the family has no sample. */
function textOfFamily({ name, type, help, isTimed, samples }: Family, measurement: Measurement): string {
  const time = isTimed ? ` ${measurement.at}` : '';
  const lines = samples(measurement).map(([labels, value]) => `${name}${labels} ${value}${time}\n`);
  return lines.length === 0 ? '' : `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${lines.join('')}`;
}

function scrapeError(value: 0 | 1): string {
  const name = 'resource_scrape_error';
  return `# HELP ${name} 1 if there was an error while getting container metrics, 0 otherwise\n# TYPE ${name} gauge\n${name} ${value}\n`;
}

/** The names of Kubernetes objects contain no character that a label would have to escape. */
function labelsOfPod({ namespace, pod }: RunningPod): string {
  return `{namespace="${namespace}",pod="${pod}"}`;
}

function labelsOfContainer({ namespace, pod }: RunningPod): string {
  return `{container="${MACHINE_CONTAINER}",namespace="${namespace}",pod="${pod}"}`;
}
