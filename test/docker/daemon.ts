/**
 * A Docker daemon only for the tests. It has its own process ids and mounts, so its containers end with it. It sets up no network:
 * containers use the network of this machine, which stays unchanged.
 */
import { readFileSync } from 'node:fs';
import { readdir, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { begin, stopCluster } from '../../hack/cluster/index.ts';
import { isAlive, type ProcessRecord, startProcess } from '../../hack/cluster/processes.ts';
import { HIERARCHIES, removeGroup } from '../../hack/cluster/leftovers.ts';
import { waitFor } from '../../hack/wait.ts';
import { FOLDERS, ping } from './host.ts';

/** On an idle machine the daemon answers after 0.1 s. */
const READY = { deadlineMilliseconds: 60_000 };
const LOG_TAIL_CHARACTERS = 2_000;
/** Name of the control group of the containers of all such daemons, in each hierarchy. */
const GROUP = 'berth-docker';
/** With a `/run` of its own, the daemon uses neither sockets of a daemon on this machine nor its containerd. */
const SCRIPT = 'mount -t tmpfs -o mode=755 run /run && exec dockerd "$@"';

/** Starts the daemon with a state folder of this name. Resolves when the daemon answers, with the value for `DOCKER_HOST`. */
export async function startDaemon(name: string): Promise<string> {
  return await begin({ name }, async (directory) => {
    const socket = join(directory, 'docker.sock');
    // An empty file replaces the settings of this machine, which may contradict the flags.
    await writeFile(join(directory, 'daemon.json'), '{}');
    const daemon = await startProcess(directory, {
      name: 'dockerd',
      file: 'unshare',
      arguments: [
        '--pid',
        '--mount',
        '--fork',
        '--mount-proc',
        '--kill-child',
        'sh',
        '-c',
        SCRIPT,
        'dockerd',
        ...daemonArguments(directory, socket),
      ],
      environment: { PATH: FOLDERS.join(delimiter) },
    });
    await waitUntilReady(daemon, directory, socket);
    return `unix://${socket}`;
  });
}

function daemonArguments(directory: string, socket: string): string[] {
  return [
    `--config-file=${join(directory, 'daemon.json')}`,
    `--host=unix://${socket}`,
    `--data-root=${join(directory, 'data')}`,
    '--exec-root=/run/docker',
    '--pidfile=/run/docker.pid',
    '--bridge=none',
    '--iptables=false',
    '--ip6tables=false',
    '--ip-forward=false',
    '--ip-masq=false',
    '--exec-opt=native.cgroupdriver=cgroupfs',
    `--cgroup-parent=/${GROUP}`,
    // If this machine is a container itself, its root must not lower the scores.
    '--oom-score-adjust=0',
  ];
}

async function waitUntilReady(daemon: ProcessRecord, directory: string, socket: string): Promise<void> {
  const state = await waitFor(
    'dockerd to answer (see its log)',
    async () => ((await isAlive(daemon)) ? (await ping(socket)) && 'ready' : 'ended'),
    READY,
  );
  if (state === 'ready') {
    return;
  }
  const log = readFileSync(join(directory, 'dockerd.log'), 'utf8');
  throw new Error(`dockerd ended: ${log.slice(-LOG_TAIL_CHARACTERS)}`);
}

/** Ends the daemon and its containers, and removes containers of earlier runs that were killed. */
export async function stopDaemon(name: string): Promise<void> {
  await stopCluster(name);
  // A group with processes belongs to another daemon.
  for (const hierarchy of ['', ...(await readdir(HIERARCHIES))]) {
    await removeGroup(join(HIERARCHIES, hierarchy, GROUP));
  }
}
