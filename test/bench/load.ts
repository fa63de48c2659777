/** The load: creates VMs and waits until the API server shows all of them Running. */
import { pino } from 'pino';
import type { KubeClient } from '../../kube/client.ts';
import { Informer } from '../../kube/informer.ts';
import { VMS } from '../../operator/objects/resources.ts';
import { quantile } from './report.ts';

/** More clients than this at once only fill the API server's queue. */
const CREATORS = 16;
/** Many times what a busy machine takes. */
const LIMIT_MILLISECONDS = 600_000;

export interface Times {
  /** From the first create until all were Running. */
  totalSeconds: number;
  /** From each VM's own create to Running. */
  p50Seconds: number;
  p99Seconds: number;
}

/** Creates `count` VMs in a namespace that has none and resolves when all are Running. */
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

/** Simulated hosts pull nothing, so any reference will do. */
const SPEC = { image: 'registry.example/guest:latest', cpu: 1, memory: '1Gi' };

function summary(milliseconds: number, latencies: number[]): Times {
  const seconds = (part: number): number => quantile(latencies, part) / 1000;
  return { totalSeconds: milliseconds / 1000, p50Seconds: seconds(0.5), p99Seconds: seconds(0.99) };
}
