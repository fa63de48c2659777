/**
 * Measures claims of VMs from one large pool over the HTTP API, on simulated hosts: many clients at once, and then a few claims in a second.
 * The pool refills itself meanwhile.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { DEV_ROLE } from '../../api/v1alpha1/names.ts';
import { VM_POOLS } from '../../api/v1alpha1/resources.ts';
import { bundle } from '../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { accountToken } from '../support/members.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import { hostsAreReady, IMAGE_ENVIRONMENT } from './contestants.ts';
import { cpuSeconds } from './measure.ts';

const NAMESPACE = 'platform-bench';
const POOL = 'ci';
const CLAIM = `/api/v1/namespaces/${NAMESPACE}/vmpools/${POOL}/claim?whenEmpty=wait`;
export const CLIENTS = 50;
/** Claims of the quiet part, and the time between two of them in milliseconds. */
const QUIET = { claims: 100, everyMilliseconds: 100 } as const;
const SLOTS_PER_HOST = 4;
/** Times of the operator's lease. On a busy machine, the API server can answer too late for shorter ones, and the operator would end. */
const LEASE = { leaseDurationSeconds: 120, renewDeadlineSeconds: 90, retryPeriodSeconds: 10 } as const;
/** A reference for simulated hosts, which pull nothing. */
const SPEC = { image: 'registry.example/guest:latest', cpu: 1, memory: '1Gi' };
/** Time limit of one wait. It is many times the need of a busy machine. */
const LIMIT = { deadlineMilliseconds: 600_000, intervalMilliseconds: 100 };

export interface ClaimOptions {
  readonly hosts: number;
  /** Number of VMs that the pool keeps, and of the claims of the crowd. */
  readonly claims: number;
}

const PROGRAMS = ['operator', 'server', 'kube-apiserver'] as const;
type CPU = Record<(typeof PROGRAMS)[number], number>;

export interface Claims extends ClaimOptions {
  /** Number of different VMs in all answers, and of answers. */
  readonly distinct: number;
  readonly answers: number;
  /** Seconds from the creation of the pool until it was full, and from the last answer to the crowd until it was full again. */
  readonly fillSeconds: number;
  readonly refillSeconds: number;
  /** Seconds from the first claim of the crowd to the last answer, and milliseconds of each of its claims. */
  readonly crowdSeconds: number;
  readonly crowd: readonly number[];
  /** Milliseconds of each claim of the quiet part. */
  readonly quiet: readonly number[];
  /** CPU seconds of each program until the pool was full, and in the time of the crowd. */
  readonly cpu: Readonly<Record<'fill' | 'crowd', CPU>>;
}

/** Returns the number of claims for which the hosts have room. Each VM that is claimed is replaced. */
export function roomFor(hosts: number): number {
  return Math.floor((hosts * SLOTS_PER_HOST - QUIET.claims) / 2);
}

/** @throws Error when a claim is refused */
export async function measureClaims({ hosts, claims }: ClaimOptions): Promise<Claims> {
  await bundle();
  const cluster = await startCluster({ name: 'bench-claims', hosts });
  try {
    return { hosts, claims, ...(await measureIn(cluster, claims)) };
  } finally {
    await cluster.stop();
  }
}

async function measureIn(cluster: Cluster, claims: number): Promise<Omit<Claims, keyof ClaimOptions>> {
  await cluster.createNamespace(NAMESPACE);
  const program = { bundle: true, environment: IMAGE_ENVIRONMENT };
  const operator = await cluster.startOperator({ ...program, config: { leaderElection: LEASE } });
  await hostsAreReady(cluster);
  const server = await cluster.startServer(program);
  const token = await accountToken(cluster, { namespace: NAMESPACE, name: 'ci' }, { role: DEV_ROLE });
  await using claimer = new Claimer(server, token);
  const cpu = (): CPU => ({
    operator: cpuSeconds(operator.pid),
    server: cpuSeconds(server.process.pid),
    'kube-apiserver': cpuSeconds(cluster.component('kube-apiserver').pid),
  });
  const began = cpu();
  const fillSeconds = await timed(async () => {
    await cluster.client().create(VM_POOLS, {
      metadata: { name: POOL, namespace: NAMESPACE },
      spec: { replicas: claims, template: { spec: SPEC } },
    });
    await untilFull(cluster);
  });
  const filled = cpu();
  const crowd: number[] = [];
  const crowdSeconds = await timed(async () => {
    const requests = Array(claims).keys();
    const client = async (): Promise<void> => {
      for (const _ of requests) {
        crowd.push(await claimer.claim());
      }
    };
    await Promise.all(Array.from({ length: CLIENTS }, client));
  });
  const handedOut = cpu();
  const refillSeconds = await timed(async () => await untilFull(cluster));
  const quiet = await claimQuietly(claimer);
  const { names } = claimer;
  const used = { fill: between(began, filled), crowd: between(filled, handedOut) };
  const answered = { distinct: new Set(names).size, answers: names.length };
  await server.process.stop();
  await operator.stop();
  return { ...answered, fillSeconds, refillSeconds, crowdSeconds, crowd, quiet, cpu: used };
}

/** Claims VMs as a client of the HTTP API. */
class Claimer implements AsyncDisposable {
  readonly names: string[] = [];
  readonly #api: HTTPClient;
  readonly #token: string;

  constructor(server: ServerProcess, token: string) {
    this.#api = new HTTPClient(server);
    this.#token = token;
  }

  /** Returns the milliseconds from the request to the answer. @throws Error when the claim is refused */
  async claim(): Promise<number> {
    const began = performance.now();
    const { status, text, body } = await this.#api.call(CLAIM, {
      method: 'POST',
      token: this.#token,
      body: {},
    });
    if (status !== 200) {
      throw new Error(`a claim got ${status}: ${text}`);
    }
    this.names.push((body as { name: string }).name);
    return performance.now() - began;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#api.close();
  }
}

function between(before: CPU, after: CPU): CPU {
  return Object.fromEntries(PROGRAMS.map((name) => [name, after[name] - before[name]])) as CPU;
}

/** Claims at a steady rate, whatever time a claim takes. Returns the milliseconds of each. */
async function claimQuietly(claimer: Claimer): Promise<number[]> {
  const times: Promise<number>[] = [];
  for (let count = 0; count < QUIET.claims; count += 1) {
    times.push(claimer.claim());
    await sleep(QUIET.everyMilliseconds);
  }
  return await Promise.all(times);
}

async function untilFull(cluster: Cluster): Promise<void> {
  const ref = { namespace: NAMESPACE, name: POOL };
  await waitFor(
    'the pool to be full',
    async () => {
      const { spec, status } = await cluster.client().get(VM_POOLS, ref);
      return status?.readyReplicas === spec.replicas && status.replicas === spec.replicas;
    },
    LIMIT,
  );
}

/** Returns the seconds that the work takes. */
async function timed(work: () => Promise<void>): Promise<number> {
  const began = performance.now();
  await work();
  return (performance.now() - began) / 1000;
}
