import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, inject, test } from 'vitest';
import { startCluster, stopCluster } from '../../hack/cluster/index.ts';
import { CLUSTER_LABEL, dockerRuntime, PROGRAM_LABEL } from '../../hack/cluster/providers/docker.ts';
import { directoryOf } from '../../hack/cluster/state.ts';
import { waitFor } from '../../hack/wait.ts';

const PROGRAM = fileURLToPath(new URL('cluster.ts', import.meta.url));
/** Time limit until the daemon has removed containers, on a busy machine. */
const GONE = { deadlineMilliseconds: 90_000 };
const PROGRAMS = ['etcd', 'kube-apiserver', 'kube-controller-manager', 'kube-scheduler'];

const docker = inject('docker');
const unfit = typeof docker === 'string' ? docker : undefined;
const clusters: string[] = [];
const children: ChildProcess[] = [];

afterEach(async () => {
  for (const child of children.splice(0)) {
    child.kill('SIGKILL');
  }
  for (const name of clusters.splice(0)) {
    await stopCluster(name);
  }
});

function named(name: string): string {
  clusters.push(`${name}-${process.pid}`);
  return `${name}-${process.pid}`;
}

/** Starts a cluster in a process of its own. If the start fails, `started` rejects with the output of the process. */
function startElsewhere(name: string, environment: Record<string, string> = {}): Elsewhere {
  const child = spawn(process.execPath, [PROGRAM, name], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...environment },
  });
  children.push(child);
  const said = text(child.stderr);
  const ended = once(child, 'close').then(async () => {
    throw new Error(await said);
  });
  const started = Promise.race([once(child.stdout, 'data'), ended]);
  return { child, started };
}

interface Elsewhere {
  child: ChildProcess;
  started: Promise<unknown>;
}

/** Returns the containers of a cluster, also stopped containers. */
async function containersOf(cluster: string) {
  const runtime = await dockerRuntime();
  const containers = await runtime.container.dockerode.listContainers({ all: true });
  return containers.filter(({ Labels }) => Labels[CLUSTER_LABEL] === cluster);
}

/** Returns the programs of a cluster that have containers. */
async function programs(cluster: string): Promise<string[]> {
  return (await containersOf(cluster)).map(({ Labels }) => Labels[PROGRAM_LABEL] ?? '').toSorted();
}

async function untilNone(cluster: string): Promise<void> {
  const isGone = async (): Promise<boolean> => {
    const left = (await containersOf(cluster)).map(({ Names, Status }) => `${Names.join()} is ${Status}`);
    if (left.length > 0) {
      throw new Error(left.join(', '));
    }
    return true;
  };
  await waitFor(`the containers of ${cluster} to be gone`, isGone, GONE);
}

describe('a cluster in containers', () => {
  test('has one container for each program of its control plane, and none after its stop', async ({
    skip,
  }) => {
    if (unfit !== undefined) {
      skip(unfit);
    }
    const cluster = await startCluster({ name: named('contained') });
    expect(await programs(cluster.name)).toEqual(PROGRAMS);
    await cluster.stop();
    await untilNone(cluster.name);
    expect(existsSync(cluster.directory)).toBe(false);
  });

  test('ends with the process that started it', async ({ skip }) => {
    if (unfit !== undefined) {
      skip(unfit);
    }
    const name = named('terminated');
    const { child, started } = startElsewhere(name);
    await started;
    expect(await programs(name)).toEqual(PROGRAMS);
    child.kill('SIGTERM');
    await untilNone(name);
  });

  test('is removed by the next start if the process that started it was killed', async ({ skip }) => {
    if (unfit !== undefined) {
      skip(unfit);
    }
    const name = named('killed');
    const { child, started } = startElsewhere(name);
    await started;
    expect(await programs(name)).toEqual(PROGRAMS);
    child.kill('SIGKILL');
    await once(child, 'close');
    await startCluster({ name: named('next') });
    await untilNone(name);
    // A cluster of another test file may have started at the same time, and then removes the containers.
    await waitFor('its folder to be gone', () => !existsSync(directoryOf(name, undefined)), GONE);
  });

  test('is refused with a reason if the Docker daemon in DOCKER_HOST does not answer', async ({ skip }) => {
    if (unfit !== undefined) {
      skip(unfit);
    }
    const { started } = startElsewhere(named('refused'), { DOCKER_HOST: 'unix:///nowhere' });
    await expect(started).rejects.toThrow('no Docker daemon answers');
  });
});
