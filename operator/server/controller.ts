/**
 * Reconciles Servers: reads their power, carries out power actions, and cordons hosts that are to be switched off. The credentials of a
 * controller are in a Secret of the system namespace. The status is stored before each command. See plan.ts.
 */
import type { Logger } from 'pino';
import { LRUCache } from 'lru-cache';
import { soonest } from '../../base/time.ts';
import { CORDONED_FOR_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import {
  type PowerAction,
  type Server,
  type ServerController,
  type ServerStatus,
  serverStatusSchema,
} from '../../api/v1alpha1/server.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import { undefinedIf } from '../../base/errors.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Result } from '../../kube/controller.ts';
import { type Node, NODES, type Pod, PODS, SECRETS } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { PODS_BY_NODE } from '../host/observe.ts';
import { type CordonPatch, cordonPatch, uncordonPatch } from '../host/plan.ts';
import { isConflict, unlessMissing } from '../../kube/errors.ts';
import { equal, mergeDiff } from '../../kube/mergepatch.ts';
import type { Recorder } from '../objects/events.ts';
import { FIELD_MANAGER, Writer } from '../objects/writer.ts';
import { type Credentials, type PowerDriver, PowerError } from './drivers/driver.ts';
import { recordServerEvents, serverStatus } from './status.ts';
import type { ServerMetrics } from './metrics.ts';
import { choose, placeOn, waitingIn } from './places.ts';
import {
  cachedHost,
  conflictOf,
  currentHost,
  type ObservedServer,
  podsOn,
  type Problem,
  type PowerReading,
  type ServerSources,
} from './observe.ts';
import {
  ACTION_POLL_MILLISECONDS,
  afterSend,
  pendingRequest,
  type ServerPlan,
  planServer,
  POLL_MILLISECONDS,
} from './plan.ts';
import { isOpen } from '../host/power.ts';
import type { KubeClient } from '../../kube/client.ts';

/**
 * Number of Servers whose controllers are called at the same time. A dead controller takes a worker for 10 of every 30 s, so 1,500 dead
 * controllers delay nobody.
 */
export const SERVER_WORKERS = 512;
/** Longest time in milliseconds between the stored intent and its command. A process that was suspended must not send an old command. */
const SEND_MILLISECONDS = 5_000;
/** Largest part of the interval between two readings that is left out at random, so that not all controllers are read at the same time. */
const JITTER = 0.1;

export interface ServerControllerOptions extends ServerSources {
  readonly taskPods: Informer<Pod>;
  readonly systemNamespace: string;
  /** Creates the driver for a controller. @throws PowerError when a field of the controller cannot work */
  readonly createDriver: (controller: ServerController, credentials: Credentials | undefined) => PowerDriver;
  readonly recorder: Recorder;
  readonly consistency: Consistency;
  readonly metrics: ServerMetrics;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

/** A reading, and the controller from which it comes. */
interface Known {
  readonly controller: ServerController;
  readonly reading: PowerReading;
  readonly canReboot: boolean;
}

export class ServerReconciler {
  readonly #options: ServerControllerOptions;
  readonly #writer: Writer<Server>;
  readonly #secrets: ControllerSecrets;
  readonly #known = new Map<string, Known>();

  constructor(options: ServerControllerOptions) {
    const { client, consistency, servers, systemNamespace } = options;
    this.#options = options;
    this.#writer = new Writer({ client, consistency, type: SERVERS, informer: servers });
    this.#secrets = new ControllerSecrets(client, systemNamespace);
  }

  /** Returns true if there is a Server of this name, or a Node that Berth cordoned for it. */
  exists(name: string): boolean {
    const { servers, nodes } = this.#options;
    return (
      servers.cache.get(name) !== undefined || nodes.cache.list().some((node) => isCordonedFor(node, name))
    );
  }

  async reconcile(name: string, { logger }: { logger: Logger }): Promise<Result> {
    const { servers, nodes, consistency } = this.#options;
    const found = servers.cache.get(name);
    if (found !== undefined) {
      await this.#readIfDue(found);
    }
    // The reading takes up to 10 s, in which the Server can change.
    const server = servers.cache.get(name);
    if (server === undefined) {
      this.#known.delete(name);
      consistency.forget(name);
      const left = nodes.cache.list().filter((node) => isCordonedFor(node, name));
      await Promise.all(left.map((node) => this.#uncordon(node, name, logger)));
      return undefined;
    }
    return await this.#reconcileServer(server, logger);
  }

  async #reconcileServer(server: Readonly<Server>, logger: Logger): Promise<Result> {
    const { clock } = this.#options;
    const { name } = server.metadata;
    const observed = await this.#observe(server);
    const plan = planServer(observed);
    const saved = await this.#writeStatus(server, serverStatus(observed, plan));
    if (saved === undefined) {
      return undefined;
    }
    const begun = saved.status?.lastAction;
    if (isOpen(begun) && begun.id !== server.status?.lastAction?.id) {
      // An action decides by a reading from after its beginning, for example with a Secret that was just corrected.
      this.#known.delete(name);
      return { requeueAfterMilliseconds: 0 };
    }
    await this.#carryOut(plan, { ...observed, server: saved }, logger);
    const { reading } = this.#known.get(name) ?? {};
    const readAt = reading && reading.at + intervalOf(saved) * (1 - JITTER * Math.random());
    const at = soonest(plan.wakeAt, readAt);
    return at === undefined ? undefined : { requeueAfterMilliseconds: Math.max(0, at - clock()) };
  }

  /** Carries out the effect of the plan. `observed` has the stored Server. */
  async #carryOut({ effect, host }: ServerPlan, observed: ObservedServer, logger: Logger): Promise<void> {
    const { node, server } = observed;
    const { name } = server.metadata;
    if (node !== undefined && host === undefined) {
      await this.#uncordon(node, name, logger);
    }
    if (node !== undefined && effect?.kind === 'cordon') {
      await this.#cordon(node, name);
    }
    if (effect?.kind === 'send') {
      await this.#send(observed, effect.command, logger);
    }
  }

  async #observe(server: Readonly<Server>): Promise<ObservedServer> {
    const { clock } = this.#options;
    const { status, metadata } = server;
    const isActing = isOpen(status?.lastAction);
    const host = isActing ? await currentHost(this.#options, server) : cachedHost(this.#options, server);
    const known = this.#known.get(metadata.name);
    const reading = isOfController(known, server) ? known.reading : undefined;
    const problem = conflictOf(this.#options, server) ?? invalidity(reading);
    return { server, problem, reading, canReboot: known?.canReboot === true, ...host, now: clock() };
  }

  /** Reads the power if the last reading is too old for the next step. */
  async #readIfDue(server: Readonly<Server>): Promise<void> {
    const { clock } = this.#options;
    const { name } = server.metadata;
    const { controller } = server.spec;
    const known = this.#known.get(name);
    if (conflictOf(this.#options, server) !== undefined || !isDue(server, known, clock())) {
      return;
    }
    const at = clock();
    try {
      const driver = await this.#driverFor(server);
      const power = await this.#options.metrics.measure(server, 'read', () => driver.read());
      this.#known.set(name, { controller, reading: { at, power }, canReboot: driver.canReboot });
    } catch (error) {
      if (!(error instanceof PowerError)) {
        throw error;
      }
      this.#secrets.forget(server);
      this.#known.set(name, { controller, reading: { at, error }, canReboot: false });
    }
  }

  async #driverFor(server: Readonly<Server>): Promise<PowerDriver> {
    return this.#options.createDriver(server.spec.controller, await this.#secrets.of(server));
  }

  /** Sends a command whose intent is stored, and stores what the controller answered. */
  async #send({ server, ...rest }: ObservedServer, command: PowerAction, logger: Logger): Promise<void> {
    const { clock, client, metrics } = this.#options;
    const { status = {}, metadata } = server;
    const begunAt = Date.parse(status.lastAction?.call?.begunAt ?? '');
    if (client.guard?.() === false || clock() > begunAt + SEND_MILLISECONDS) {
      return;
    }
    logger.info({ command, by: status.lastAction?.by }, 'sending a command to the controller of a server');
    const failure = await this.#failureOf(async () => {
      const driver = await this.#driverFor(server);
      await metrics.measure(server, command, () => driver.send(command));
    });
    if (failure !== undefined) {
      logger.warn(
        { server: metadata.name, command, err: failure },
        'a command to the controller of a server failed',
      );
    }
    const plan: ServerPlan = afterSend(status, failure, clock());
    await this.#writeStatus(server, serverStatus({ ...rest, server, now: clock() }, plan));
  }

  async #failureOf(work: () => Promise<void>): Promise<PowerError | undefined> {
    try {
      await work();
      return undefined;
    } catch (error) {
      if (error instanceof PowerError) {
        return error;
      }
      throw error;
    }
  }

  /** Stores the status. Returns the stored Server, or undefined if it no longer exists. @throws ApiError a conflict */
  async #writeStatus(server: Readonly<Server>, wanted: ServerStatus): Promise<Readonly<Server> | undefined> {
    const { recorder, metrics, clock } = this.#options;
    const status = boundStatus(serverStatusSchema, wanted);
    const patch = mergeDiff(server.status, status);
    if (patch === undefined) {
      return server;
    }
    const { name } = server.metadata;
    const saved = await this.#writer.patch(name, server, { status: patch }, 'status');
    if (saved !== undefined) {
      recordServerEvents(recorder, server, status, clock());
      const { lastAction } = status;
      if (
        lastAction?.completedAt !== undefined &&
        server.status?.lastAction?.completedAt !== lastAction.completedAt
      ) {
        metrics.countAction(lastAction);
      }
    }
    return saved;
  }

  /** Cordons the Node, unless somebody else has cordoned it already. */
  async #cordon(node: Readonly<Node>, name: string): Promise<void> {
    if (node.spec?.unschedulable !== true) {
      await this.#patchNode(node, { [CORDONED_FOR_ANNOTATION]: name }, cordonPatch(node));
    }
  }

  /** Removes the cordon that Berth set for this Server. The VMs that have waited longest get the free places. */
  async #uncordon(node: Readonly<Node>, name: string, logger: Logger): Promise<void> {
    if (isCordonedFor(node, name)) {
      const tasks = this.#options.taskPods.cache.byIndex(PODS_BY_NODE, node.metadata.name);
      const place = placeOn(node, [...podsOn(this.#options, node.metadata.name), ...tasks]);
      const waiting = waitingIn(this.#options);
      const chosen = choose(place, waiting, (other) => this.#options.nodes.cache.get(other));
      const writes = await Promise.allSettled(chosen.map((pod) => this.#nominate(pod, node)));
      // The names are help for the scheduler. Without them, the host is for all Pods.
      for (const { reason } of writes.filter((write) => write.status === 'rejected')) {
        logger.warn(
          { err: reason as unknown, host: node.metadata.name },
          'A waiting Pod could not be named for a host',
        );
      }
      await this.#patchNode(node, { [CORDONED_FOR_ANNOTATION]: null }, uncordonPatch(node));
    }
  }

  /**
   * Tells the scheduler that it is to expect the Pod on this host, so that it gives the place to no other Pod. Without it, the scheduler
   * prefers Pods that it has tried less often. A VM would then wait while hosts start for it and younger VMs take them.
   */
  async #nominate({ metadata }: Readonly<Pod>, node: Readonly<Node>): Promise<void> {
    const { namespace = '', name, uid } = metadata;
    const patch = { metadata: { uid }, status: { nominatedNodeName: node.metadata.name } };
    const options = { fieldManager: FIELD_MANAGER, subresource: 'status' };
    const write = this.#options.client.mergePatch(PODS, { namespace, name }, patch, options);
    await undefinedIf(isConflict, unlessMissing(write));
  }

  /** A conflict means that the Node has changed. The watch reports it, and the next reconcile decides again. */
  async #patchNode({ metadata }: Readonly<Node>, annotations: object, spec: CordonPatch): Promise<void> {
    const { name, uid, resourceVersion } = metadata;
    const patch = { metadata: { uid, resourceVersion, annotations }, spec };
    const write = this.#options.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
    await undefinedIf(isConflict, unlessMissing(write));
  }
}

function isCordonedFor({ metadata }: Readonly<Node>, server: string): boolean {
  return metadata.annotations?.[CORDONED_FOR_ANNOTATION] === server;
}

/** Returns the problem of a controller with a field that cannot work. */
function invalidity(reading: PowerReading | undefined): Problem | undefined {
  const { error } = reading ?? {};
  return error?.reason === 'ControllerInvalid' ? { reason: error.reason, message: error.message } : undefined;
}

/** Returns the interval between two readings in milliseconds. */
function intervalOf({ status }: Readonly<Server>): number {
  return isOpen(status?.lastAction) ? ACTION_POLL_MILLISECONDS : POLL_MILLISECONDS;
}

/** Returns true if the reading comes from the controller that the Server has now. */
function isOfController(known: Known | undefined, { spec }: Readonly<Server>): known is Known {
  return known !== undefined && equal(known.controller, spec.controller);
}

/** Returns true if the power must be read: it was never read from this controller, an action begins, or the interval is over. */
function isDue(server: Readonly<Server>, known: Known | undefined, now: number): boolean {
  if (!isOfController(known, server)) {
    return true;
  }
  const { lastAction } = server.status ?? {};
  // An action that is about to begin reads the power itself.
  const isAboutToAct = !isOpen(lastAction) && pendingRequest({ server, now }) !== undefined;
  return !isAboutToAct && now >= known.reading.at + intervalOf(server) * (1 - JITTER);
}

/** Only Secrets of this type are used, so that a Server cannot send the content of another Secret to a controller. */
const SECRET_TYPE = 'kubernetes.io/basic-auth';
/** Time in milliseconds for which a working Secret is not read again. */
const KEPT_MILLISECONDS = 300_000;
/** Largest number of Secrets that are kept. */
const KEPT = 4_096;

export class ControllerSecrets {
  readonly #client: KubeClient;
  readonly #namespace: string;
  readonly #known = new LRUCache<string, Credentials>({ max: KEPT, ttl: KEPT_MILLISECONDS });

  constructor(client: KubeClient, namespace: string) {
    this.#client = client;
    this.#namespace = namespace;
  }

  /**
   * Returns the credentials for the controller of a Server. The result is undefined if the Server names no Secret.
   * @throws PowerError when the Secret is missing or not usable
   * @throws ApiError when the Secret cannot be read
   */
  async of({ spec: { controller } }: Pick<Server, 'spec'>): Promise<Credentials | undefined> {
    const { secretName: name } = controller;
    if (name === undefined) {
      return undefined;
    }
    const known = this.#known.get(name);
    if (known !== undefined) {
      return known;
    }
    const read = await this.#read(name);
    this.#known.set(name, read);
    return read;
  }

  /** Forgets the Secret of a Server, because its controller refused a call. Perhaps the Secret has changed. */
  forget({ spec: { controller } }: Pick<Server, 'spec'>): void {
    this.#known.delete(controller.secretName ?? '');
  }

  async #read(name: string): Promise<Credentials> {
    const namespace = this.#namespace;
    const secret = await unlessMissing(this.#client.get(SECRETS, { namespace, name }));
    if (secret === undefined) {
      throw missing(`spec.controller.secretName: namespace ${namespace} has no Secret ${name}`);
    }
    if (secret.type !== SECRET_TYPE) {
      throw missing(`spec.controller.secretName: Secret ${name} must have the type ${SECRET_TYPE}`);
    }
    const { username, password } = secret.data ?? {};
    if (username === undefined || password === undefined) {
      throw missing(`spec.controller.secretName: Secret ${name} must have the keys username and password`);
    }
    return { username: decode(username), password: decode(password) };
  }
}

function decode(base64: string): string {
  return Buffer.from(base64, 'base64').toString('utf8');
}

function missing(message: string): PowerError {
  return new PowerError('CredentialsMissing', message, { isRefusal: true });
}
