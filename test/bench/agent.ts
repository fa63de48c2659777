/**
 * Measures the time that the agent adds to a start: from the bound Pod to the guest's kernel, compared with the same QEMU command by hand.
 */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFile, mkdir, open, readFile, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { pino } from 'pino';
import { FILES } from '../../agent/drivers/qemu/state.ts';
import { segmentName } from '../../agent/console/logwriter.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { AgentProcess, endMachines } from '../../hack/cluster/agent.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { createImage, guestFile, shareGuest } from '../fixtures/images.ts';
import { waitFor } from '../../hack/wait.ts';

const NAMESPACE = 'platform-default';
/** File with the data for cloud-init in the folder of a machine. */
const SEED = 'seed.iso';
/** First text of a Linux kernel on its console. */
const KERNEL_STARTED = 'Linux version';
/** Time limit. An emulated guest takes 2 s. */
const START = { deadlineMilliseconds: 60_000, intervalMilliseconds: 2 };
/** Guests run one at a time, but the agent may admit the next guest before the previous one is gone. */
const CPU_OVERCOMMIT = 8;

/** Times in milliseconds, one for each run. */
export interface Starts {
  /** Time from the watch event of the bound Pod to the guest's kernel. */
  agent: number[];
  /** From the start of QEMU to the guest's kernel. */
  byHand: number[];
}

/** Starts a guest by the agent and then by hand, in turns, so that other load of the machine affects both. */
export async function measureStarts(runs: number): Promise<Starts> {
  const image = await guestFile('amd64');
  const cluster = await startCluster({ name: 'bench-agent', operator: true });
  const stop = new AbortController();
  try {
    const bench = await prepare(cluster, image, stop.signal);
    const times: Starts = { agent: [], byHand: [] };
    // The first start reads the image and the hypervisor from the disk, so it is not counted.
    await bench.run('warm-up');
    for (let run = 0; run < runs; run += 1) {
      const { agent, byHand } = await bench.run(`run-${run}`);
      times.agent.push(agent);
      times.byHand.push(byHand);
    }
    return times;
  } finally {
    stop.abort();
    await endMachines(cluster.directory);
    await cluster.stop();
  }
}

async function prepare(cluster: Cluster, image: string, signal: AbortSignal): Promise<Bench> {
  const shared = await shareGuest(cluster, image);
  const agent = await AgentProcess.start(cluster, {
    nodeName: 'host',
    config: { architecture: 'amd64', cpuOvercommit: CPU_OVERCOMMIT, images: { sharedRoots: [shared] } },
  });
  await createImage(cluster, 'guest', { sharedFile: { path: 'guest.qcow2' } });
  const bench = new Bench(cluster, agent);
  await bench.watch(signal);
  return bench;
}

class Bench {
  readonly #cluster: Cluster;
  readonly #agent: AgentProcess;
  /** Time of the event with the bound Pod, and uid of the Pod, by name of the VM. */
  readonly #bound = new Map<string, { at: number; uid: string }>();

  constructor(cluster: Cluster, agent: AgentProcess) {
    this.#cluster = cluster;
    this.#agent = agent;
  }

  async watch(signal: AbortSignal): Promise<void> {
    const pods = new Informer<Pod>(this.#cluster.client(), PODS, {
      namespace: NAMESPACE,
      logger: pino({ level: 'silent' }),
    });
    pods.cache.onChange(({ object: { metadata, spec } }) => {
      if (spec.nodeName !== undefined && !this.#bound.has(metadata.name)) {
        this.#bound.set(metadata.name, { at: performance.now(), uid: metadata.uid ?? '' });
      }
    });
    pods.start(signal);
    await pods.synced;
  }

  async run(name: string): Promise<{ agent: number; byHand: number }> {
    const metadata = { name, namespace: NAMESPACE };
    await this.#cluster.client().create(VMS, { metadata, spec: { image: 'guest', cpu: 1, memory: '256Mi' } });
    const { at, uid } = await waitFor(`VM ${name} to be bound`, () => this.#bound.get(name), START);
    const folder = join(this.#agent.dataDirectory, 'machines', uid);
    const agent = (await kernelStarted(folder)) - at;
    const machine = (await this.#agent.machines()).get(uid);
    if (machine === undefined) {
      throw new Error(`VM ${name} has no process`);
    }
    const command = (await readFile(`/proc/${machine.pid}/cmdline`, 'utf8')).split('\0').slice(0, -1);
    const program = await readlink(`/proc/${machine.pid}/exe`);
    const { base } = JSON.parse(await readFile(join(folder, FILES.state), 'utf8')) as {
      base: { path: string };
    };
    const copy = join(this.#cluster.directory, name);
    await mkdir(copy, { mode: 0o711 });
    await copyFile(join(folder, SEED), join(copy, SEED));
    await this.#cluster.kubectl(['-n', NAMESPACE, 'delete', 'vm', name]);
    return { agent, byHand: await this.#startByHand(copy, program, command, base.path) };
  }

  /** Runs the same command in another folder, with a new disk and a copy of the seed. Returns the milliseconds to the guest's kernel. */
  async #startByHand(folder: string, program: string, command: string[], base: string): Promise<number> {
    const disk = join(folder, FILES.disk);
    const overlay = ['create', '-q', '-f', 'qcow2', '-F', 'qcow2', '-b', base, disk];
    await promisify(execFile)('qemu-img', overlay);
    const began = performance.now();
    const serial = await open(join(folder, segmentName('serial', 0)), 'a');
    // The serial port of the guest is the standard input and output of QEMU.
    const child = spawn(program, command.slice(1), { cwd: folder, stdio: ['ignore', serial.fd, 'ignore'] });
    const ended = once(child, 'exit');
    try {
      return (await kernelStarted(folder)) - began;
    } finally {
      child.kill('SIGKILL');
      await ended;
      await serial.close();
    }
  }
}

/** Waits until the guest in this folder has printed the first line of its kernel. Returns the time. */
async function kernelStarted(folder: string): Promise<number> {
  return await waitFor(
    'the kernel to start',
    async () => {
      const console = await readFile(join(folder, segmentName('serial', 0)), 'latin1');
      return console.includes(KERNEL_STARTED) && performance.now();
    },
    START,
  );
}
