/** Histograms of the times of jobs. They count the same jobs as the ring, so that Prometheus can tell about more than 24 hours. */
import { Histogram, type Registry } from 'prom-client';
import type { Measure } from './ring.ts';

/** Upper bounds in seconds. A VM of a pool waits for a second, and a job can run for hours. */
const BUCKETS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400];

export class JobTimeMetrics {
  readonly #histograms: Readonly<Record<Measure, Histogram<'vm_namespace'>>>;
  /** Namespaces that have series. */
  readonly #known = new Set<string>();

  constructor(registry: Registry) {
    const registers = [registry];
    this.#histograms = {
      waited: new Histogram({
        name: 'berth_job_wait_seconds',
        help: 'Seconds from the creation of a VM until it first ran. For a VM of a pool: from its claim until it was Ready',
        labelNames: ['vm_namespace'] as const,
        buckets: BUCKETS,
        registers,
      }),
      ran: new Histogram({
        name: 'berth_job_run_seconds',
        help: 'Seconds from the end of the wait in berth_job_wait_seconds until the VM was deleted or has failed',
        labelNames: ['vm_namespace'] as const,
        buckets: BUCKETS,
        registers,
      }),
    };
  }

  /** Begins the series of a namespace with zero. Prometheus does not count the job with which a series begins. */
  expect(vm_namespace: string): void {
    if (!this.#known.has(vm_namespace)) {
      this.#known.add(vm_namespace);
      Object.values(this.#histograms).forEach((histogram) => histogram.zero({ vm_namespace }));
    }
  }

  /** Counts a job. */
  observe(vm_namespace: string, measure: Measure, seconds: number): void {
    this.expect(vm_namespace);
    this.#histograms[measure].observe({ vm_namespace }, Math.max(0, seconds || 0));
  }

  /** Removes the series of a deleted namespace. Otherwise they would be exported until the operator ends. */
  forget(vm_namespace: string): void {
    this.#known.delete(vm_namespace);
    Object.values(this.#histograms).forEach((histogram) => histogram.remove({ vm_namespace }));
  }
}
