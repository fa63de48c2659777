/**
 * The contestants of the benchmark: the operator with Berth's admission policies and without, an operator on Go's usual framework (the
 * anchor, ./anchor), and a bare client that only makes the operator's writes (the floor, ./floor.ts).
 */
import { execFile, spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { isMissing } from '../../base/errors.ts';
import { bundleInto } from '../../hack/bundle.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { freePorts } from '../../hack/cluster/ports.ts';
import { startProcess, stopProcess } from '../../hack/cluster/processes.ts';
import { waitFor } from '../../hack/wait.ts';
import type { Template } from './floor.ts';
import { countWrites } from './measure.ts';

/** Time limit. A new operator first gives slots to every host. */
const START_MILLISECONDS = 120_000;
/** Time limit for a first build of the framework on two busy processors. */
const BUILD_MILLISECONDS = 900_000;

/** Environment of the programs in the images (Dockerfile). */
export const IMAGE_ENVIRONMENT = { MALLOC_ARENA_MAX: '1' };
/** The operator as its image starts it. */
export const IMAGE_OPERATOR = {
  bundle: true,
  environment: IMAGE_ENVIRONMENT,
  flags: ['--min-semi-space-size=8'],
};

/** A process that brings VMs to Running. */
export interface Running {
  pid: number;
  stop: () => Promise<void>;
}

export interface Contestant {
  name: 'operator' | 'without policies' | 'anchor' | 'floor';
  /** Whether Berth's admission policies are bound, as in an installation. */
  policies: boolean;
  start: (cluster: Cluster, namespace: string) => Promise<Running>;
}

/** Returns the contestants. Without Go, the anchor is missing. `built` is a folder for built programs. */
export async function contestants(built: string): Promise<Contestant[]> {
  const anchor = await buildAnchor(built);
  const floor = new FloorContestant(built);
  const operator = async (cluster: Cluster): Promise<Running> => {
    const { pid, stop } = await startOperator(cluster);
    return { pid, stop };
  };
  const all: Contestant[] = [
    {
      name: 'operator',
      policies: true,
      start: async (cluster, namespace) => {
        const { pid, stop } = await operator(cluster);
        return {
          pid,
          stop: async () => {
            await floor.learn(cluster, namespace);
            await stop();
          },
        };
      },
    },
    { name: 'without policies', policies: false, start: operator },
    { name: 'floor', policies: false, start: (cluster, namespace) => floor.start(cluster, namespace) },
  ];
  if (anchor !== undefined) {
    all.splice(2, 0, { name: 'anchor', policies: false, start: (cluster) => startAnchor(anchor, cluster) });
  }
  return all;
}

async function startOperator(cluster: Cluster): Promise<Running> {
  const operator = await cluster.startOperator(IMAGE_OPERATOR);
  await hostsAreReady(cluster);
  return { pid: operator.pid, stop: () => operator.stop() };
}

/** Waits until the operator has written the slots of every host, and nothing since the last check. */
export async function hostsAreReady(cluster: Cluster): Promise<void> {
  const written = async (): Promise<number> =>
    (await countWrites(cluster.client())).get('APPLY nodes/status') ?? 0;
  let last = -1;
  await waitFor(
    'the hosts to have their slots',
    async () => {
      const before = last;
      last = await written();
      return last > 0 && last === before;
    },
    { deadlineMilliseconds: START_MILLISECONDS, intervalMilliseconds: 2_000 },
  );
}

/** Path of the program. Undefined without Go. */
async function buildAnchor(folder: string): Promise<string | undefined> {
  const program = join(folder, 'anchor');
  try {
    await promisify(execFile)('go', ['build', '-trimpath', '-buildvcs=false', '-o', program, '.'], {
      cwd: join(import.meta.dirname, 'anchor'),
      env: { ...process.env, CGO_ENABLED: '0' },
      timeout: BUILD_MILLISECONDS,
    });
    return program;
  } catch (error) {
    if (isMissing(error)) {
      return undefined;
    }
    throw error;
  }
}

/** The anchor uses the operator's own identity, so that the API server treats both alike. */
async function startAnchor(program: string, cluster: Cluster): Promise<Running> {
  const [port] = await freePorts(1);
  const record = await startProcess(cluster.directory, {
    name: 'anchor',
    file: program,
    arguments: ['--config', cluster.operatorKubeconfig, '--metrics', `127.0.0.1:${port}`],
  });
  await waitFor(
    'the anchor to start its workers',
    async () => (await readFile(join(cluster.directory, 'anchor.log'), 'utf8')).includes('Starting workers'),
    { deadlineMilliseconds: START_MILLISECONDS },
  );
  return { pid: record.pid, stop: () => stopProcess(cluster.directory, record) };
}

/** Repeats the writes that the operator made for its first VM. */
class FloorContestant {
  readonly #folder: string;
  #template: Template | undefined;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async learn(cluster: Cluster, namespace: string): Promise<void> {
    const ref = { namespace, name: 'vm-0' };
    const client = cluster.client();
    this.#template ??= { vm: await client.get<VM>(VMS, ref), pod: await client.get<Pod>(PODS, ref) };
  }

  async start(cluster: Cluster, namespace: string): Promise<Running> {
    if (this.#template === undefined) {
      throw new Error('the floor repeats what the operator wrote: let it run first');
    }
    const template = join(cluster.directory, 'floor-template.json');
    writeFileSync(template, JSON.stringify(this.#template));
    // The program is a bundle like the operator's. Otherwise the TypeScript loader of Node.js would be measured too.
    await bundleInto(this.#folder, { floor: join(import.meta.dirname, 'floor.ts') });
    writeFileSync(join(this.#folder, 'package.json'), '{"type":"module"}');
    const program = join(this.#folder, 'floor.js');
    const child = spawn(process.execPath, [program, cluster.operatorKubeconfig, template, namespace], {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, ...IMAGE_ENVIRONMENT },
    });
    const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
    const ready = new Promise<boolean>((resolve) => child.stdout.once('data', () => resolve(true)));
    if ((await Promise.race([ended, ready])) !== true) {
      throw new Error('the floor ended before it was ready');
    }
    return {
      pid: child.pid ?? 0,
      stop: async () => {
        child.kill();
        await ended;
      },
    };
  }
}
