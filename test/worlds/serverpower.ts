/**
 * One server with a host, on a clock of its own, beside a real API server. The controller of the server and the agent of the host are
 * simulated. The operator's reconciler is the real one. It can crash before or after any of its requests and commands.
 */
import { pino } from 'pino';
import { Registry } from 'prom-client';
import {
  DESIRED_ANNOTATION,
  HOST_MARK,
  HOST_VALUE,
  MACHINE_CONTAINER,
  VM_UID_LABEL,
} from '../../api/v1alpha1/names.ts';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { PowerAction, Server, ServerSpec } from '../../api/v1alpha1/server.ts';
import { timestamp } from '../../base/time.ts';
import { waitFor } from '../../hack/wait.ts';
import type { KubeClient } from '../../kube/client.ts';
import { Consistency } from '../../kube/consistency.ts';
import { type Node, NODES, type Pod, PODS } from '../../kube/core.ts';
import { isConflict } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { compareResourceVersions, type KubeObject, keyOf } from '../../kube/objects.ts';
import { ServerReconciler } from '../../operator/server/controller.ts';
import { type Power, type PowerDriver, PowerError } from '../../operator/server/drivers/driver.ts';
import { ServerMetrics } from '../../operator/server/metrics.ts';
import type { Recorder } from '../../operator/objects/events.ts';
import { DESIRED, machineFor, podFor } from './agenthost.ts';

/** Time in milliseconds from the power to the first report of the host. */
const BOOT_MILLISECONDS = 20_000;
/** Time in milliseconds until the next operator leads after a crash. */
const FAIL_OVER_MILLISECONDS = 15_000;
/** Wait in milliseconds after an error, as in kube/controller.ts. */
const RETRY_MILLISECONDS = 1_000;
const CAUGHT_UP = { deadlineMilliseconds: 30_000, intervalMilliseconds: 1 };
const SILENT = pino({ level: 'silent' });

/** How the controller answers the next commands. */
export type Answer = 'accepts' | 'refuses' | 'loses' | 'lies';

export interface Watched {
  readonly servers: Informer<Server>;
  readonly nodes: Informer<Node>;
  readonly pods: Informer<Pod>;
  readonly emulatorPods: Informer<Pod>;
}

export interface Sides {
  readonly client: KubeClient;
  readonly operator: KubeClient;
  readonly watched: Watched;
}

/** Thrown into nothing: the promises of a crashed operator never settle. */
const NEVER = new Promise<never>(() => undefined);

export class ServerWorld {
  readonly name: string;
  readonly #client: KubeClient;
  /** Client with the rights of the operator, which alone may write Pods of VMs. */
  readonly #operator: KubeClient;
  readonly #watched: Watched;
  readonly #namespace: string;
  now = 1_900_000_000_000;
  power: Power = 'On';
  answer: Answer = 'accepts';
  /** Time from a command to its effect, in milliseconds. */
  delay = 1_000;
  readsFailUntil = 0;
  /** Commands that reached the controller, with the id of their action. */
  readonly commands: { readonly id: string; readonly command: PowerAction; readonly hadEffect: boolean }[] =
    [];
  /** What must never happen and happened. */
  readonly violations: string[] = [];
  /** Number of requests and commands after which the operator crashes; undefined for never. `isAfter` tells whether the last one is done. */
  crash: { left: number; isAfter: boolean } | undefined;
  crashes = 0;
  /** Commands that had their effect and that nobody has undone since, by their action and name. */
  readonly #done = new Set<string>();
  #events: { readonly at: number; readonly happen: () => Promise<void> | void }[] = [];
  #boots = 0;
  #vms = 0;
  #reconciler: { readonly run: () => Promise<number | undefined>; readonly crashed: Promise<'crashed'> };

  private constructor({ client, operator, watched }: Sides, place: { namespace: string; name: string }) {
    this.#client = client;
    this.#operator = operator;
    this.#watched = watched;
    this.#namespace = place.namespace;
    this.name = place.name;
    this.#reconciler = this.#start();
  }

  static async create(
    sides: Sides,
    place: { namespace: string; name: string; address: string },
  ): Promise<ServerWorld> {
    const { client, watched } = sides;
    const world = new ServerWorld(sides, place);
    const { name } = place;
    const labels = { [HOST_MARK]: HOST_VALUE };
    await client.create(NODES, { metadata: { name, labels }, spec: { unschedulable: false } });
    await world.#report();
    const controller = {
      webhook: { onURL: 'http://x/', offURL: 'http://x/', statusURL: 'http://x/', pattern: '(on|off)' },
    };
    await world.#follow(
      watched.servers,
      await client.create(SERVERS, {
        metadata: { name },
        spec: { addresses: [place.address], nodeName: name, controller },
      }),
    );
    return world;
  }

  /** The agent reports: its Node is Ready, with the boot ID of the present boot. */
  async #report(): Promise<void> {
    const ready = {
      type: 'Ready',
      status: 'True',
      reason: 'AgentReady',
      message: 'x',
      lastTransitionTime: timestamp(this.now),
    };
    const status = { conditions: [ready], nodeInfo: { bootID: `boot-${this.#boots}` } };
    const node = await this.#client.mergePatch(
      NODES,
      { name: this.name },
      { status },
      { subresource: 'status' },
    );
    await this.#follow(this.#watched.nodes, node);
  }

  async #follow<T extends KubeObject>(
    { cache }: Informer<T>,
    { metadata: { resourceVersion = '' } }: T,
  ): Promise<void> {
    await waitFor(
      'the cache',
      async () => compareResourceVersions(cache.resourceVersion, resourceVersion) >= 0,
      CAUGHT_UP,
    );
  }

  /** Starts an operator without memory. */
  #start() {
    const { promise: crashed, resolve } = Promise.withResolvers<'crashed'>();
    const died = (): Promise<never> => {
      resolve('crashed');
      return NEVER;
    };
    const through = async <R>(work: () => Promise<R>): Promise<R> => {
      const { crash } = this;
      if (crash !== undefined && crash.left-- <= 0) {
        this.crash = undefined;
        await (crash.isAfter ? work().catch(() => undefined) : undefined);
        return await died();
      }
      return await work();
    };
    const client = new Proxy(this.#operator, {
      get: (target, key) => {
        const member = Reflect.get(target, key) as unknown;
        return key === 'get' || key === 'list' || key === 'mergePatch'
          ? (...values: unknown[]) =>
              through(() => (member as (...all: unknown[]) => Promise<unknown>).apply(target, values))
          : member;
      },
    });
    const consistency = new Consistency();
    const reconciler = new ServerReconciler({
      ...this.#watched,
      // The world has no tasks, and no Emulators either.
      taskPods: this.#watched.emulatorPods,
      client,
      systemNamespace: this.#namespace,
      createDriver: () => this.#driver(through),
      recorder: { event: () => undefined } as unknown as Recorder,
      consistency,
      metrics: new ServerMetrics(new Registry(), { isLeader: () => false, servers: () => [] }),
      clock: () => this.now,
    });
    const run = async (): Promise<number | undefined> => {
      await waitFor('the own changes', async () => consistency.ready(this.name), CAUGHT_UP);
      return (await reconciler.reconcile(this.name, { logger: SILENT }))?.requeueAfterMilliseconds;
    };
    return { run, crashed };
  }

  #driver(through: <R>(work: () => Promise<R>) => Promise<R>): PowerDriver {
    return {
      canReboot: false,
      read: async () => {
        if (this.now < this.readsFailUntil) {
          throw new PowerError('ControllerUnreachable', 'no answer', { isRefusal: true });
        }
        return this.power;
      },
      send: async (command) => await through(async () => await this.#obey(command)),
    };
  }

  /** The controller gets a command. */
  async #obey(command: PowerAction): Promise<void> {
    const server = await this.server();
    const { id = '' } = server.status?.lastAction ?? {};
    const hadEffect = this.answer === 'accepts' || this.answer === 'loses';
    if (this.#done.has(`${id} ${command}`)) {
      this.violations.push(`${command} of action ${id} is done twice`);
    }
    if (hadEffect) {
      this.#done.add(`${id} ${command}`);
    }
    this.commands.push({ id, command, hadEffect });
    if (this.answer === 'refuses') {
      throw new PowerError('ControllerFailed', 'refused', { isRefusal: true });
    }
    const running = (await this.#pods()).filter(isRunning).length;
    if (command === 'Off' && running > 0 && server.spec.policy?.whenOccupied !== 'Force') {
      this.violations.push(`Off of a host with ${running} VMs, unasked`);
    }
    if (hadEffect) {
      this.#events.push({
        at: this.now + this.delay,
        happen: () => this.#switch(command === 'On' ? 'On' : 'Off'),
      });
    }
    if (this.answer === 'loses') {
      throw new PowerError('ControllerUnreachable', 'the connection ended', { isRefusal: false });
    }
  }

  async #switch(power: Power): Promise<void> {
    const was = this.power;
    this.power = power;
    if (power === 'On' && was === 'Off') {
      this.#events.push({ at: this.now + BOOT_MILLISECONDS, happen: () => this.#boot() });
    }
  }

  /** The host reports after a boot. Machines that ran have ended. */
  async #boot(): Promise<void> {
    if (this.power === 'Off') {
      return;
    }
    this.#boots += 1;
    await this.#report();
    await Promise.all((await this.#pods()).filter(isRunning).map((pod) => this.#remove(pod)));
  }

  /** Somebody presses the button, or the power fails. */
  async press(power: Power): Promise<void> {
    // Whoever presses the button can undo a command that no operator has seen done. To do it again is then right.
    this.#done.clear();
    await this.#switch(power);
  }

  async server(): Promise<Server> {
    return await this.#client.get(SERVERS, { name: this.name });
  }

  async node(): Promise<Node> {
    return await this.#client.get(NODES, { name: this.name });
  }

  async #pods(): Promise<Pod[]> {
    const fieldSelector = `spec.nodeName=${this.name}`;
    return (await this.#client.list(PODS, { namespace: this.#namespace, fieldSelector })).items;
  }

  async #remove(pod: Pod): Promise<void> {
    const [namespace = '', name = ''] = keyOf(pod).split('/');
    await this.#operator.delete(PODS, { namespace, name }, { gracePeriodSeconds: 0 });
    await waitFor(
      'the Pod to be gone',
      async () => this.#watched.pods.cache.get(keyOf(pod)) === undefined,
      CAUGHT_UP,
    );
  }

  /** A VM starts on the host, if the scheduler may place it there. */
  async startVM(): Promise<void> {
    const [{ spec }, server] = [await this.node(), await this.server()];
    if (spec?.unschedulable === true || server.status?.host !== undefined || this.power === 'Off') {
      return;
    }
    const uid = `vm-${this.#vms++}`;
    const name = `${this.name}-${uid}`;
    const { metadata, ...pod } = podFor({ name: this.name }, machineFor(this.#namespace, name));
    const labels = { ...metadata.labels, [VM_UID_LABEL]: uid };
    await this.#follow(
      this.#watched.pods,
      await this.#operator.create(PODS, { ...pod, metadata: { ...metadata, labels } }),
    );
  }

  async endVM(): Promise<void> {
    const [pod] = await this.#pods();
    await (pod && this.#remove(pod));
  }

  /** A VM of the host is stopped, and keeps its place. */
  async stopVM(): Promise<void> {
    const pod = (await this.#pods()).find(isRunning);
    if (pod === undefined || this.power === 'Off') {
      return;
    }
    const { namespace = '', name } = pod.metadata;
    const state = { waiting: { reason: 'Stopped', message: '' } };
    const containerStatuses = [
      { name: MACHINE_CONTAINER, state, ready: false, restartCount: 0, image: 'x', imageID: '' },
    ];
    const ref = { namespace, name };
    const desired = { [DESIRED_ANNOTATION]: JSON.stringify({ ...DESIRED, powerState: 'Stopped' }) };
    await this.#operator.mergePatch(PODS, ref, { metadata: { annotations: desired } });
    const patch = { status: { phase: 'Running', containerStatuses } };
    await this.#follow(
      this.#watched.pods,
      await this.#client.mergePatch(PODS, ref, patch, { subresource: 'status' }),
    );
  }

  async setPolicy(whenOccupied: 'Refuse' | 'Force' | 'Wait'): Promise<void> {
    await this.#patchSpec({ policy: { whenOccupied, waitSeconds: 40 } });
  }

  async declare(action: PowerAction, agoMilliseconds = 0): Promise<void> {
    await this.#patchSpec({ powerAction: { action, requestedAt: timestamp(this.now - agoMilliseconds) } });
  }

  async #patchSpec(spec: Partial<ServerSpec>): Promise<void> {
    await this.#follow(
      this.#watched.servers,
      await this.#client.mergePatch(SERVERS, { name: this.name }, { spec }),
    );
  }

  /** Requests an action as the HTTP API does: not while another one is requested or runs. */
  async request(action: PowerAction): Promise<void> {
    const { metadata, status } = await this.server();
    const isBusy =
      status?.request !== undefined || (status?.lastAction && status.lastAction.completedAt === undefined);
    if (isBusy) {
      return;
    }
    const request = {
      id: `${this.now}-${this.commands.length}`,
      action,
      requestedAt: timestamp(this.now),
      by: 'x',
    };
    const { uid, resourceVersion } = metadata;
    const patch = { metadata: { uid, resourceVersion }, status: { request } };
    await this.#follow(
      this.#watched.servers,
      await this.#client.mergePatch(SERVERS, { name: this.name }, patch, { subresource: 'status' }),
    );
  }

  /** Lets this time pass, in which the operator reconciles as often as it asks for. */
  async run(milliseconds: number): Promise<void> {
    const end = this.now + milliseconds;
    while (this.now < end) {
      const wait = await this.#reconcile();
      const next = Math.min(end, this.now + Math.max(1, wait), ...this.#events.map(({ at }) => at));
      this.now = Math.max(this.now, next);
      const due = this.#events.filter(({ at }) => at <= this.now);
      this.#events = this.#events.filter(({ at }) => at > this.now);
      for (const event of due) {
        await event.happen();
      }
    }
  }

  /** Reconciles once. Returns the milliseconds until the next time. */
  async #reconcile(): Promise<number> {
    const { run, crashed } = this.#reconciler;
    try {
      const result = await Promise.race([run(), crashed]);
      if (result === 'crashed') {
        this.crashes += 1;
        this.#reconciler = this.#start();
        return FAIL_OVER_MILLISECONDS;
      }
      return result ?? Number.POSITIVE_INFINITY;
    } catch (error) {
      if (!isConflict(error)) {
        throw error;
      }
      return RETRY_MILLISECONDS;
    }
  }
}

function isRunning({ status }: Pod): boolean {
  return status?.containerStatuses?.[0]?.state?.waiting?.reason !== 'Stopped';
}
