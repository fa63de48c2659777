/** Metrics of image caching. */
import { Counter, type Gauge, type Registry } from 'prom-client';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { exportLeaderGauge } from '../../kube/leadergauge.ts';
import type { AttemptResult } from './attempt.ts';
import type { TaskType } from './observed.ts';

const STATES = ['Cached', 'Queued', 'Caching', 'Removing', 'Failed', 'Outdated'];

export interface CacheView {
  readonly isLeader: () => boolean;
  readonly entries: () => readonly Readonly<ImageCacheEntry>[];
}

export class CacheMetrics {
  readonly #jobs: Counter<'type' | 'result'>;

  constructor(registry: Registry, view: CacheView) {
    const registers = [registry];
    this.#jobs = new Counter({
      name: 'berth_cache_jobs_total',
      help: 'Number of ended Jobs for ImageCacheEntries, by type (cache, uncache) and result',
      labelNames: ['type', 'result'] as const,
      registers,
    });
    for (const type of ['cache', 'uncache'] as const) {
      for (const result of ['succeeded', 'failed', 'unscheduled'] as const) {
        this.#jobs.inc({ type, result }, 0);
      }
    }
    exportLeaderGauge(registry, {
      name: 'berth_cache_hosts',
      help: 'Number of pairs of an ImageCacheEntry and a host, by the state of the image on the host',
      labelNames: ['state'],
      isLeader: view.isLeader,
      count: (gauge) => countHosts(gauge, view),
    });
  }

  ended({ type, result }: { type: TaskType; result: AttemptResult }): void {
    this.#jobs.inc({ type, result });
  }
}

function countHosts(gauge: Gauge<'state'>, view: CacheView): void {
  const counts = new Map(STATES.map((state) => [state, 0]));
  const add = (state: string, count: number) => counts.set(state, (counts.get(state) ?? 0) + count);
  for (const { status } of view.entries()) {
    add('Cached', status?.cached ?? 0);
    for (const { state } of status?.nodes ?? []) {
      add(state, 1);
    }
  }
  for (const [state, count] of counts) {
    gauge.set({ state }, count);
  }
}
