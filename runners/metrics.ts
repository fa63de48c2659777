/** Metrics of RunnerSets. The gauges have the names that dashboards of other programs for scale sets know. */
import { LRUCache } from 'lru-cache';
import { type Gauge, Histogram, type Registry } from 'prom-client';
import type { RunnerSet, StatisticName } from '../api/v1alpha1/runnerset.ts';
import type { JobItem } from './github/answers.ts';
import { scaleSetName } from './machines.ts';
import { exportLeaderGauge } from '../kube/leadergauge.ts';

/** Upper bounds in seconds. A job waits for a boot, or for a free host. */
const WAIT_BUCKETS = [5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600];
/** Upper bounds in seconds. Most jobs of CI take minutes. */
const RUN_BUCKETS = [10, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400];
/** Number of news whose repetitions are known. GitHub repeats a message that was not confirmed. */
const REMEMBERED = 4_096;
/** Results of jobs that have a label of their own, so that the number of series has a limit. */
const RESULTS = new Set(['succeeded', 'failed', 'canceled']);

const labelNames = ['runner_name', 'vm_namespace'] as const;

/** What the gauges read for each scrape. */
export interface RunnerView {
  readonly isLeader: () => boolean;
  readonly sets: () => readonly Readonly<RunnerSet>[];
}

export class RunnerMetrics {
  readonly #wait: Histogram<'runner_name' | 'vm_namespace'>;
  readonly #run: Histogram<'runner_name' | 'vm_namespace' | 'result'>;
  readonly #seen = new LRUCache<string, true>({ max: REMEMBERED });

  constructor(registry: Registry, view: RunnerView) {
    const registers = [registry];
    exportStatistics(registry, view);
    this.#wait = new Histogram({
      name: 'berth_runner_job_wait_seconds',
      help: 'Seconds from the queueing of a job at GitHub until a runner took it',
      labelNames,
      buckets: WAIT_BUCKETS,
      registers,
    });
    this.#run = new Histogram({
      name: 'berth_runner_job_run_seconds',
      help: 'Seconds of a job on its runner. The label result is succeeded, failed, canceled or other',
      labelNames: ['runner_name', 'vm_namespace', 'result'],
      buckets: RUN_BUCKETS,
      registers,
    });
  }

  /** Measures the jobs that began or ended. GitHub can repeat news, so each job counts once. */
  observe(set: Readonly<RunnerSet>, items: readonly JobItem[]): void {
    const labels = labelsOf(set);
    for (const item of items) {
      const { messageType, jobId = '', queueTime, runnerAssignTime, finishTime } = item;
      const key = `${set.metadata.uid}/${messageType}/${jobId}`;
      if (jobId === '' || this.#seen.has(key)) {
        continue;
      }
      this.#seen.set(key, true);
      if (messageType === 'JobStarted') {
        observeTime(this.#wait.labels(labels), queueTime, runnerAssignTime);
      }
      if (messageType === 'JobCompleted') {
        const result = RESULTS.has(item.result ?? '') ? (item.result ?? '') : 'other';
        observeTime(this.#run.labels({ ...labels, result }), runnerAssignTime, finishTime);
      }
    }
  }

  /** Removes the series of a deleted set. */
  forget(set: Readonly<RunnerSet>): void {
    const labels = labelsOf(set);
    this.#wait.remove(labels);
    [...RESULTS, 'other'].forEach((result) => this.#run.remove({ ...labels, result }));
  }
}

function observeTime(
  histogram: { observe(seconds: number): void },
  from: number | undefined,
  until: number | undefined,
): void {
  if (from !== undefined && until !== undefined && until >= from) {
    histogram.observe((until - from) / 1000);
  }
}

function labelsOf(set: Readonly<RunnerSet>): Record<(typeof labelNames)[number], string> {
  return { runner_name: scaleSetName(set), vm_namespace: set.metadata.namespace ?? '' };
}

function exportStatistics(registry: Registry, { isLeader, sets }: RunnerView): void {
  const countOf = (name: StatisticName) => (gauge: Gauge<(typeof labelNames)[number]>) => {
    for (const set of sets()) {
      const value = set.status?.statistics?.[name];
      if (value !== undefined) {
        gauge.set(labelsOf(set), value);
      }
    }
  };
  exportLeaderGauge(registry, {
    name: 'runner_scale_set_total_available_jobs',
    help: 'Jobs that no scale set has taken',
    labelNames,
    isLeader,
    count: countOf('totalAvailableJobs'),
  });
  exportLeaderGauge(registry, {
    name: 'runner_scale_set_total_acquired_jobs',
    help: 'Jobs that the scale set has taken',
    labelNames,
    isLeader,
    count: countOf('totalAcquiredJobs'),
  });
  exportLeaderGauge(registry, {
    name: 'runner_scale_set_total_assigned_jobs',
    help: 'Jobs that need a runner of the scale set, with those that run',
    labelNames,
    isLeader,
    count: countOf('totalAssignedJobs'),
  });
  exportLeaderGauge(registry, {
    name: 'runner_scale_set_total_running_jobs',
    help: 'Jobs that run',
    labelNames,
    isLeader,
    count: countOf('totalRunningJobs'),
  });
  exportLeaderGauge(registry, {
    name: 'runner_scale_set_total_registered_runners',
    help: 'Runners that GitHub knows',
    labelNames,
    isLeader,
    count: countOf('totalRegisteredRunners'),
  });
  exportLeaderGauge(registry, {
    name: 'runner_scale_set_total_busy_runners',
    help: 'Runners with a job',
    labelNames,
    isLeader,
    count: countOf('totalBusyRunners'),
  });
  exportLeaderGauge(registry, {
    name: 'runner_scale_set_total_idle_runners',
    help: 'Runners that wait for a job',
    labelNames,
    isLeader,
    count: countOf('totalIdleRunners'),
  });
}
