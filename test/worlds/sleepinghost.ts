/**
 * A cluster with an operator and one ARM host, whose agent runs in this process. VMs, emulators and cache Jobs on the host are stand-ins
 * without processes. Therefore the test can count at each moment how many of them work.
 */
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import { SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import type { BaseImage } from '../../agent/disks/disk.ts';
import type { Holder } from '../../agent/images/local/holders.ts';
import type { AskedImage } from '../../agent/images/store.ts';
import { pause } from '../../base/time.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { NODES } from '../../kube/core.ts';
import { CacheEntries } from '../fixtures/cacheentries.ts';
import { Emulators } from '../fixtures/emulatorobjects.ts';
import { VMs } from '../fixtures/vms.ts';
import { TestHost } from './agenthost.ts';
import { type StandInDriver, StandInImages } from './standin.ts';

/** Time that the fetch of an image takes on this host. It is several times the interval of the counts. */
const FETCH_MILLISECONDS = 300;
/** Interval between two counts of the work on the host. */
const COUNT_MILLISECONDS = 100;
/** Digest of all images, in the form that reports need. */
const DIGEST = `sha256:${'0'.repeat(64)}`;
/** Slots of an ARM host. */
const SLOTS = 4;
const SETTINGS = {
  name: 'sleeper',
  network: 'nat',
  architecture: 'arm64',
  emulator: { sdk: '/stand-in' },
  // This setting makes the slots the only limit of the Jobs.
  tasksAtOnce: 16,
} as const;

export class SleepingWorld implements AsyncDisposable {
  readonly cluster: Cluster;
  readonly operator: OperatorProcess;
  readonly host: TestHost;
  readonly images = new SleepingImages();
  readonly vms: VMs;
  readonly emulators: Emulators;
  readonly entries: CacheEntries;
  /** Number of counts so far, by the number of VMs, emulators and cache Jobs that worked. */
  readonly counts = new Map<number, number>();
  readonly #parts = new AsyncDisposableStack();

  private constructor(cluster: Cluster, operator: OperatorProcess, host: TestHost) {
    this.cluster = cluster;
    this.operator = operator;
    this.host = host;
    this.vms = new VMs(cluster);
    this.emulators = new Emulators(cluster);
    host.images = this.images;
    this.entries = new CacheEntries(cluster);
  }

  static async start(name: string): Promise<SleepingWorld> {
    await using parts = new AsyncDisposableStack();
    const cluster = parts.adopt(await startCluster({ name }), (one) => one.stop());
    const operator = await cluster.startOperator();
    const host = parts.adopt(await TestHost.make(cluster, SETTINGS), (one) => one.remove());
    host.emulators.bootsAtOnce = true;
    const world = new SleepingWorld(cluster, operator, host);
    const timer = setInterval(() => world.#count(), COUNT_MILLISECONDS);
    parts.defer(() => clearInterval(timer));
    await host.launch({ approve: false });
    await waitFor('the slots of the host', async () => {
      const node = await cluster.client().get(NODES, { name: host.name });
      return node.status?.allocatable?.[SLOT_RESOURCE] === String(SLOTS);
    });
    world.#parts.use(parts.move());
    return world;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync();
  }

  /** Uids of the VMs and emulators that run on the host, and holders of its fetches for cache Jobs. */
  get working(): { vms: string[]; emulators: string[]; jobs: string[] } {
    const { driver, emulators } = this.host;
    return { vms: runningOf(driver), emulators: runningOf(emulators), jobs: [...this.images.fetching] };
  }

  /** Number of VMs, emulators and cache Jobs that the host knows, also those that do not work at this moment. */
  get traces(): number {
    const { driver, emulators, network } = this.host;
    const { attachments, namespaces } = network;
    const sizes = [driver.machines, emulators.machines, attachments, namespaces, this.images.fetching];
    return sizes.reduce((sum, { size }) => sum + size, 0);
  }

  #count(): void {
    const { vms, emulators, jobs } = this.working;
    const count = vms.length + emulators.length + jobs.length;
    this.counts.set(count, (this.counts.get(count) ?? 0) + 1);
  }
}

/**
 * An image store whose fetches for cache Jobs take some time, as those of real images do. It lists the fetched images, because the operator
 * waits for this.
 */
class SleepingImages extends StandInImages {
  /** Holders of the fetches that are under way. */
  readonly fetching = new Set<Holder>();
  /** References of the fetched images, by their holder. */
  readonly fetched = new Map<Holder, string>();
  #changed: () => void = () => undefined;

  override async ensure(source: MachineImageSource, options: AskedImage): Promise<BaseImage> {
    const base = await super.ensure(source, options);
    const { holder, signal } = options;
    if (holder.startsWith('entry/') && 'reference' in source) {
      this.fetching.add(holder);
      try {
        await pause(FETCH_MILLISECONDS, signal);
      } finally {
        this.fetching.delete(holder);
      }
      this.fetched.set(holder, source.reference);
      this.#changed();
    }
    return { ...base, path: import.meta.filename, digest: DIGEST };
  }

  override images(): { names: string[]; sizeBytes: number }[] {
    return [...this.fetched.values()].map((name) => ({
      names: [name, `${name.replace(/:\d+$/, '')}@${DIGEST}`],
      sizeBytes: 1024,
    }));
  }

  override async remove(holder: Holder): Promise<void> {
    this.fetched.delete(holder);
    this.#changed();
  }

  override onChange(handler: () => void): void {
    this.#changed = handler;
  }
}

function runningOf({ machines }: StandInDriver): string[] {
  return [...machines].flatMap(([uid, { kind }]) => (kind === 'running' ? [uid] : []));
}
