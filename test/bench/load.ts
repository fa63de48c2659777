/** The load of the benchmark: creates VMs and waits until the API server shows all of them Running. */
import { pino } from 'pino';
import type { KubeClient } from '../../kube/client.ts';
import { Informer } from '../../kube/informer.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { quantile } from './report.ts';

/** Number of clients at the same time. More clients would only fill the queue of the API server. */
const CREATORS = 16;
/** Time limit, which is many times the need of a busy machine. */
const LIMIT_MILLISECONDS = 600_000;

export interface Times {
  /** Seconds from the first creation until all were Running. */
  totalSeconds: number;
  /** Seconds from the creation of each VM to Running. */
  p50Seconds: number;
  p99Seconds: number;
}

/** Creates `count` VMs in a namespace without VMs. Resolves when all are Running. */
export async function runLoad(client: KubeClient, namespace: string, count: number): Promise<Times> {
  const stop = new AbortController();
  const vms = new Informer(client, VMS, { namespace, logger: pino({ level: 'silent' }) });
  const born = new Map<string, number>();
  const latencies: number[] = [];
  const { promise: allRunning, resolve, reject } = Promise.withResolvers<void>();
  vms.cache.onChange(({ object }) => {
    const since = born.get(object.metadata.name);
    if (since === undefined || object.status?.phase !== 'Running') {
      return;
    }
    born.delete(object.metadata.name);
    if (latencies.push(performance.now() - since) === count) {
      resolve();
    }
  });
  vms.start(stop.signal);
  await vms.synced;
  const limit = setTimeout(() => reject(overdue(latencies.length, count)), LIMIT_MILLISECONDS);
  try {
    const began = performance.now();
    await Promise.all([createAll(client, namespace, count, born), allRunning]);
    return summary(performance.now() - began, latencies);
  } finally {
    clearTimeout(limit);
    stop.abort();
  }
}

function overdue(running: number, count: number): Error {
  return new Error(`${running} of ${count} VMs are Running after ${LIMIT_MILLISECONDS / 1000} s`);
}

async function createAll(
  client: KubeClient,
  namespace: string,
  count: number,
  born: Map<string, number>,
): Promise<void> {
  const names = Array.from({ length: count }, (_, index) => `vm-${index}`).values();
  const work = async (): Promise<void> => {
    for (const name of names) {
      born.set(name, performance.now());
      await client.create(VMS, { metadata: { name, namespace }, spec: SPEC });
    }
  };
  await Promise.all(Array.from({ length: CREATORS }, work));
}

/** A reference for simulated hosts, which pull nothing. */
const SPEC = { image: 'registry.example/guest:latest', cpu: 1, memory: '1Gi' };

function summary(milliseconds: number, latencies: number[]): Times {
  const seconds = (part: number): number => quantile(latencies, part) / 1000;
  return { totalSeconds: milliseconds / 1000, p50Seconds: seconds(0.5), p99Seconds: seconds(0.99) };
}
