/** Set-up of the project `docker`: a Docker daemon, and a cluster in containers that all files of the project share. */
import type { TestProject } from 'vitest/node';
import { startCluster } from '../../hack/cluster/index.ts';
import { startDaemon, stopDaemon } from './daemon.ts';
import { isDaemonHere, whyNoDocker } from './host.ts';

declare module 'vitest' {
  export interface ProvidedContext {
    /** Environment that lets clusters run in containers, or the reason why this machine cannot run them. */
    docker: Record<string, string> | string;
  }
}

export async function setup(project: TestProject): Promise<(() => Promise<void>) | undefined> {
  const unfit = whyNoDocker();
  if (unfit !== undefined) {
    project.provide('docker', `${unfit}; so no integration test runs in containers either`);
    return undefined;
  }
  const daemon = (await isDaemonHere()) ? undefined : `docker-${process.pid}`;
  const host = daemon === undefined ? {} : { DOCKER_HOST: await startDaemon(daemon) };
  const environment = { BERTH_CLUSTER: 'docker', ...host };
  project.provide('docker', environment);
  const cluster = await inEnvironment(environment, () => startCluster({ name: `shared-${process.pid}` }));
  project.provide('sharedCluster', cluster.name);
  return async () => {
    await cluster.stop();
    if (daemon !== undefined) {
      await stopDaemon(daemon);
    }
  };
}

/**
 * Runs `work` with more environment variables and restores the environment, because set-ups of other projects may run in this process too.
 */
async function inEnvironment<T>(environment: Record<string, string>, work: () => Promise<T>): Promise<T> {
  const before = { ...process.env };
  Object.assign(process.env, environment);
  try {
    return await work();
  } finally {
    for (const name of Object.keys(environment)) {
      if (before[name] === undefined) {
        delete process.env[name];
      } else {
        process.env[name] = before[name];
      }
    }
  }
}
