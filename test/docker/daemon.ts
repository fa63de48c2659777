/**
 * A Docker daemon for the tests alone, with processes and mounts of its own, whose end is the end of its containers. It
 * sets up no network: containers use this machine's, which stays as it is.
 */
import { readFileSync } from 'node:fs';
import { readdir, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { begin, stopCluster } from '../../hack/cluster/index.ts';
import { isAlive, type ProcessRecord, startProcess } from '../../hack/cluster/processes.ts';
import { HIERARCHIES, removeGroup } from '../../hack/cluster/controlgroups.ts';
import { waitFor } from '../../hack/wait.ts';
import { FOLDERS, ping } from './host.ts';

/** It answers after 0.1 s on an idle machine. */
const READY = { deadlineMilliseconds: 60_000 };
const LAST_WORDS_CHARACTERS = 2_000;
/** Of the containers of all such daemons, in each hierarchy. */
const GROUP = 'berth-docker';
/** With a `/run` of its own it meets neither a daemon of this machine nor that one's containerd. */
const SCRIPT = 'mount -t tmpfs -o mode=755 run /run && exec dockerd "$@"';

/** Starts it in the state folder of that name and resolves, once it answers, with what `DOCKER_HOST` is to be. */
export async function startDaemon(name: string): Promise<string> {
  return await begin({ name }, async (directory) => {
    const socket = join(directory, 'docker.sock');
    // In place of the machine's own settings, with which these flags may be at odds.
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
    // Where this machine is a container itself, its root may not lower the scores.
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
  throw new Error(`dockerd ended: ${log.slice(-LAST_WORDS_CHARACTERS)}`);
}

/** Ends it, its containers, and what killed runs left of theirs. */
export async function stopDaemon(name: string): Promise<void> {
  await stopCluster(name);
  // Groups in which something runs belong to another daemon.
  for (const hierarchy of ['', ...(await readdir(HIERARCHIES))]) {
    await removeGroup(join(HIERARCHIES, hierarchy, GROUP));
  }
}
