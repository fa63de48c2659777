/**
 * A host whose real agent parts (admission, planner, steps, ledger of ports and records) run two sleeping drivers against a model of the
 * API server. At each start of a machine, it checks the number of used slots, and that no two machines have the same port.
 */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { pino } from 'pino';
import type { HostDriver } from '../../agent/drivers/hostdrivers.ts';
import { PodController } from '../../agent/pods/controller.ts';
import type { PodHost } from '../../agent/pods/host.ts';
import { adoptMachines } from '../../agent/pods/recover.ts';
import type { MachineRecord } from '../../agent/pods/machine.ts';
import { RecordStore } from '../../agent/pods/records.ts';
import { TaskRunner } from '../../agent/tasks/runner.ts';
import { pause } from '../../base/time.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { PodApi } from './podapi.ts';
import { StandInDriver, StandInImages, StandInNetwork } from './standin.ts';
import { StandInEmulators } from './standinemulators.ts';

/** Folder in memory, because records are synced to the disk. */
const MEMORY = '/dev/shm';
const SLOTS = 4;
const LARGE = 1e15;
/** Time that the end of a machine takes. Other steps happen meanwhile. */
const END_MILLISECONDS = 60;
/** Few ports, and two ranges that overlap. */
const RANGES = { ssh: '5600-5603', emulators: '5602-5605' };

type Method = (...args: unknown[]) => unknown;

/** Life of one agent process. After its end, none of its calls has an effect. */
class Life {
  isOver = false;
  readonly #calls = new Set<Promise<unknown>>();

  /** Ends the agent as SIGKILL does, between two calls. Resolves when the calls that have begun are done. */
  async end(): Promise<void> {
    this.isOver = true;
    while (this.#calls.size > 0) {
      await Promise.allSettled(this.#calls);
    }
  }

  /** Returns a proxy of `part` for this agent. After the end of the agent, its methods never return. */
  use<T extends object>(part: T): T {
    const get = (target: T, key: string | symbol): unknown => {
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === 'function'
        ? (...args: unknown[]) => this.#call(target, value as Method, args)
        : value;
    };
    return new Proxy(part, { get });
  }

  #call(target: object, method: Method, args: readonly unknown[]): unknown {
    if (this.isOver) {
      return new Promise(() => undefined);
    }
    const result = Reflect.apply(method, target, args);
    if (result instanceof Promise) {
      this.#calls.add(result);
      void this.#forget(result);
    }
    return result;
  }

  async #forget(call: Promise<unknown>): Promise<void> {
    await Promise.allSettled([call]);
    this.#calls.delete(call);
  }
}

/** Records that a dead agent no longer changes. */
class OwnRecords extends RecordStore {
  readonly #life: Life;

  constructor(directory: string, life: Life) {
    super(directory);
    this.#life = life;
  }

  override save(record: MachineRecord): void {
    if (!this.#life.isOver) {
      super.save(record);
    }
  }

  override remove(uid: string): void {
    if (!this.#life.isOver) {
      super.remove(uid);
    }
  }
}

export class ModelHost {
  readonly api = new PodApi();
  readonly vms = new StandInDriver();
  readonly emulators = new StandInEmulators();
  readonly network = new StandInNetwork('nat');
  /** Host ports that other programs of the host have. */
  readonly foreign = new Set<number>();
  /** Uids of the VMs whose machines get another Pod. The operator lists them on the Node. */
  readonly #awaited = new Set<string>();
  /** Broken rules, as texts. */
  readonly faults: string[] = [];
  readonly #directory = mkdtempSync(join(MEMORY, 'berth-model-'));
  #controller: PodController | undefined;
  #stop = new AbortController();
  #life = new Life();

  constructor() {
    this.emulators.bootsAtOnce = true;
    this.network.isUsable = async (_uid?: string, port?: { hostPort: number }) =>
      !this.foreign.has(port?.hostPort ?? 0);
    for (const driver of [this.vms, this.emulators]) {
      const start = driver.start.bind(driver);
      driver.start = async (folder: Parameters<typeof start>[0], plan: Parameters<typeof start>[1]) => {
        await start(folder, plan);
        this.#check();
      };
      const stop = driver.stop.bind(driver);
      driver.stop = async (folder: Parameters<typeof stop>[0], options: Parameters<typeof stop>[1]) => {
        await pause(END_MILLISECONDS);
        await stop(folder, options);
      };
    }
  }

  /** Uids of the machines that run. */
  running({ machines }: StandInDriver): string[] {
    return [...machines].flatMap(([uid, { kind }]) => (kind === 'running' ? [uid] : []));
  }

  /** Changes whether the Node lists the VM as one that gets another Pod. The agent sees the change. */
  setAwaited(uid: string, isAwaited: boolean): void {
    this.#awaited[isAwaited ? 'add' : 'delete'](uid);
    this.#controller?.touchAll();
  }

  /** Everything that the host has: machines, attachments and records. */
  get left(): string[] {
    return [
      ...this.vms.machines.keys(),
      ...this.emulators.machines.keys(),
      ...this.network.attachments.keys(),
      ...this.network.namespaces.keys(),
      ...readdirSync(join(this.#directory, 'pods')),
    ];
  }

  async start(): Promise<void> {
    const logger = pino({ level: 'silent' });
    const metrics = createMetrics();
    this.#life = new Life();
    const host = this.#host(() => controller.informer.cache.list());
    const tasks = new TaskRunner({
      directory: join(this.#directory, 'tasks'),
      atOnce: 1,
      work: async () => ({}),
      logger,
      changed: () => undefined,
    });
    const controller = new PodController({
      client: this.#life.use(this.api.client),
      scope: { nodeName: 'host' },
      host,
      tasks,
      logger,
      metrics,
    });
    this.#controller = controller;
    this.#stop = new AbortController();
    await adoptMachines(host, controller.machines);
    await controller.start(this.#stop.signal, Promise.resolve());
  }

  /** Kills the agent. Its machines continue to run. */
  async stop(): Promise<void> {
    await this.#life.end();
    this.#stop.abort(new Error('The agent was killed'));
    await Promise.all([this.vms.close(), this.emulators.close()]);
  }

  remove(): void {
    rmSync(this.#directory, { recursive: true, force: true });
  }

  #host(boundPods: PodHost['boundPods']): PodHost {
    const life = this.#life;
    const healthy = { healthy: true, faults: [], machines: {}, repaired: [], refusedConnections: {} };
    const host = {
      drivers: new Map<string, HostDriver>([
        [this.vms.name, { driver: life.use<StandInDriver>(this.vms), accelerators: [] }],
      ]),
      emulators: life.use(this.emulators),
      architecture: 'arm64',
      network: life.use(this.network),
      monitor: { faultyChecks: 0, host: undefined, checkOf: async () => healthy },
      images: life.use(new StandInImages()),
      disk: { wish: () => undefined, startsAnew: () => undefined, roomBytes: LARGE },
      records: new OwnRecords(join(this.#directory, 'pods'), life),
      address: '127.0.0.1',
      forwardAddress: '127.0.0.1',
      ports: RANGES,
      boundPods,
      machinesDirectory: join(this.#directory, 'machines'),
      logger: pino({ level: 'silent' }),
      capacity: () => ({ slots: SLOTS, cpuMillis: LARGE, memoryBytes: LARGE, diskBytes: LARGE }),
      isAwaited: ({ machine }: Readonly<MachineRecord>) => this.#awaited.has(machine?.vm.uid ?? ''),
      fenced: () => false,
      event: () => undefined,
    };
    return host as unknown as PodHost;
  }

  #check(): void {
    const count = this.running(this.vms).length + this.running(this.emulators).length;
    if (count > SLOTS) {
      this.faults.push(`${count} machines run`);
    }
    const { attachments, namespaces } = this.network;
    const ports = [...attachments.values(), ...namespaces.values()].flatMap((one) => one.ports);
    const numbers = ports.map(({ hostPort }) => hostPort);
    if (new Set(numbers).size < numbers.length) {
      this.faults.push(`a port has two holders: ${numbers.join(', ')}`);
    }
  }
}
