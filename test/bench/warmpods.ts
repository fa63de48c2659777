/**
 * Measures starts from the memory of an image through the whole agent: from the bound Pod to the first answer of the guest agent, to the end of
 * the renewal, and to the banner of the guest's SSH server.
 */
import { mkdir, readFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { pino } from 'pino';
import { IMAGES, VMS } from '../../api/v1alpha1/resources.ts';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import { AgentProcess, endMachines } from '../../hack/cluster/agent.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { makeKey } from '../../hack/login.ts';
import { waitFor } from '../../hack/wait.ts';
import { PODS, type Pod } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { createImage, guestFile, shareGuest } from '../fixtures/images.ts';
import { tell } from '../worlds/qemuguest.ts';

const NAMESPACE = 'platform-default';
const SOURCE = 'source';
const IMAGE = 'warm';
const SIZE = { cpu: 1, memory: '256Mi' };
/** Guests run one at a time, but the agent may admit the next guest before the previous one is gone. */
const CPU_OVERCOMMIT = 8;
/** Time limit of one wait. An emulated guest boots in less on a busy machine. */
const LIMIT = { deadlineMilliseconds: 300_000, intervalMilliseconds: 20 };
/** Time limit of one connection. Without it, a connection could hang that the hypervisor accepted for the guest. */
const BANNER_MILLISECONDS = 500;

/** Milliseconds from the watch event of the bound Pod, one for each start. */
export interface PodTimes {
  /** To the call of the driver. Until then, the agent has made the disk and the network of the machine. */
  prepared: number[];
  answered: number[];
  renewed: number[];
  banner: number[];
}

/** What the agent logs of a start: milliseconds from the call of the driver. */
interface Logged {
  time: string;
  uid: string;
  milliseconds: { answered: number; renewed: number };
}

/** Starts guests one after another. */
export async function measureWarmPods(starts: number): Promise<PodTimes> {
  const guest = await guestFile('amd64');
  const operatorConfig = { imageStorage: { folder: true } };
  const cluster = await startCluster({ name: 'bench-warm', operator: true, operatorConfig });
  const stop = new AbortController();
  try {
    const bench = await prepare(cluster, guest);
    await bench.watch(stop.signal);
    const times: PodTimes = { prepared: [], answered: [], renewed: [], banner: [] };
    // The first start brings the image to the host, so it is not counted.
    await bench.run('warm-up');
    for (let run = 0; run < starts; run += 1) {
      const one = await bench.run(`run-${run}`);
      for (const name of ['prepared', 'answered', 'renewed', 'banner'] as const) {
        times[name].push(one[name]);
      }
    }
    return times;
  } finally {
    stop.abort();
    await endMachines(cluster.directory);
    await cluster.stop();
  }
}

/** Makes a host, and an Image with the memory of a guest that listens for SSH. */
async function prepare(cluster: Cluster, guest: string): Promise<Bench> {
  const shared = await shareGuest(cluster, guest);
  const storageFolder = join(cluster.directory, 'storage');
  await mkdir(storageFolder);
  const images = { sharedRoots: [shared], storageFolder };
  const agent = await AgentProcess.start(cluster, {
    nodeName: 'host',
    config: { architecture: 'amd64', cpuOvercommit: CPU_OVERCOMMIT, images },
  });
  await createImage(cluster, 'guest', { sharedFile: { path: 'guest.qcow2' } });
  const sshAuthorizedKeys = [await makeKey(join(cluster.directory, 'ssh', 'key'))];
  const bench = new Bench(cluster, agent, sshAuthorizedKeys);
  const port = await freePort();
  await bench.create(SOURCE, { image: 'guest', ports: [`${port}:80`] });
  await tell(port, 'agent=0');
  await createImage(cluster, IMAGE, { fromVM: { name: SOURCE, memory: true } });
  const isSaved = async () =>
    (await cluster.client().get(IMAGES, { namespace: NAMESPACE, name: IMAGE })).status?.memory !== undefined;
  await waitFor('the memory of the guest to be saved', isSaved, LIMIT);
  await bench.delete(SOURCE);
  return bench;
}

class Bench {
  readonly #cluster: Cluster;
  readonly #agent: AgentProcess;
  readonly #sshAuthorizedKeys: string[];
  /** Time of the event with the bound Pod in milliseconds since 1970, and uid of the Pod, by name of the VM. */
  readonly #bound = new Map<string, { at: number; uid: string }>();

  constructor(cluster: Cluster, agent: AgentProcess, sshAuthorizedKeys: string[]) {
    this.#cluster = cluster;
    this.#agent = agent;
    this.#sshAuthorizedKeys = sshAuthorizedKeys;
  }

  async watch(signal: AbortSignal): Promise<void> {
    const logger = pino({ level: 'silent' });
    const pods = new Informer<Pod>(this.#cluster.client(), PODS, { namespace: NAMESPACE, logger });
    pods.cache.onChange(({ object: { metadata, spec } }) => {
      if (spec.nodeName !== undefined && !this.#bound.has(metadata.name)) {
        this.#bound.set(metadata.name, { at: Date.now(), uid: metadata.uid ?? '' });
      }
    });
    pods.start(signal);
    await pods.synced;
  }

  async create(name: string, spec: Partial<VMSpec>): Promise<void> {
    const sshAuthorizedKeys = this.#sshAuthorizedKeys;
    await this.#cluster.client().create(VMS, {
      metadata: { name, namespace: NAMESPACE },
      spec: { ...SIZE, sshAuthorizedKeys, readiness: { type: 'None' }, ...spec },
    });
  }

  async delete(name: string): Promise<void> {
    await this.#cluster.kubectl(['-n', NAMESPACE, 'delete', 'vm', name]);
  }

  async run(name: string): Promise<Record<keyof PodTimes, number>> {
    const port = await freePort();
    await this.create(name, { image: IMAGE, ports: [`${port}:22`] });
    const { at, uid } = await waitFor(`VM ${name} to be bound`, () => this.#bound.get(name), LIMIT);
    await waitFor(`the banner of VM ${name}`, async () => await hasBanner(port), LIMIT);
    const banner = Date.now() - at;
    const { time, milliseconds } = await waitFor(
      `the log of the start of VM ${name}`,
      async () => await this.#logged(uid),
      LIMIT,
    );
    await this.delete(name);
    const renewed = Date.parse(time) - at;
    const prepared = renewed - milliseconds.renewed;
    return { prepared, answered: prepared + milliseconds.answered, renewed, banner };
  }

  /** Returns what the agent has logged of the start of this Pod's machine. */
  async #logged(uid: string): Promise<Logged | undefined> {
    const lines = (await readFile(this.#agent.logFile, 'utf8')).split('\n');
    const line = lines.find((text) => text.includes(uid) && text.includes('"renewed"'));
    return line === undefined ? undefined : (JSON.parse(line) as Logged);
  }
}

/** Returns whether an SSH server sends its banner over this port. */
async function hasBanner(port: number): Promise<boolean> {
  const socket = connect({ host: '127.0.0.1', port, signal: AbortSignal.timeout(BANNER_MILLISECONDS) });
  try {
    for await (const chunk of socket) {
      return String(chunk).startsWith('SSH-');
    }
    return false;
  } catch {
    // The guest is not there yet.
    return false;
  } finally {
    socket.destroy();
  }
}
