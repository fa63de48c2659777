/**
 * A fleet of hosts with Servers on virtual time, for the planner of power by demand. The world plays everybody else: the scheduler, the
 * reconciler of Servers, controllers, hosts and users.
 */
import {
  CORDONED_FOR_ANNOTATION,
  DESIRED_ANNOTATION,
  MACHINE_CONTAINER,
  SLOT_RESOURCE,
} from '../../api/v1alpha1/names.ts';
import type { LastAction, Server, ServerStatus } from '../../api/v1alpha1/server.ts';
import { timestamp } from '../../base/time.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { type OperatorConfig, parseConfig } from '../../operator/config/config.ts';
import { openAction } from '../../operator/host/power.ts';
import { suits } from '../../kube/scheduling.ts';
import { hostPodSpec, type Placement } from '../../operator/tasks/placement.ts';
import { byDemand, hostFacts, isPending, seeEmpty } from '../../operator/server/demand/facts.ts';
import { choose, placeOn } from '../../operator/server/places.ts';
import { isWaiting } from '../../operator/vm/triggers.ts';
import { type DemandDecision, planDemand } from '../../operator/server/demand/controller.ts';
import { type Host, nodeOf, serverOf, START } from './demandhost.ts';

/** Time in milliseconds in which the reconciler begins a requested action. */
const BEGIN_MILLISECONDS = 200;
/** Longest time in milliseconds for which the scheduler prefers other Pods to one that it could not place. It doubles from a second on. */
const BACK_OFF_MILLISECONDS = 10_000;
/** Time in milliseconds from the cordon of a host until the reconciler checks again that it is empty. */
const CORDON_MILLISECONDS = 3_000;
interface Timer {
  readonly at: number;
  readonly run: () => void;
}

/** What happened to one VM. Times are in milliseconds of virtual time. */
export interface Life {
  readonly pod: Pod;
  readonly createdAt: number;
  boundAt?: number;
  /** Number of times that the scheduler found no host, and the time by which it orders the Pods. */
  attempts: number;
  backOffUntil: number;
}

export interface FleetOptions {
  readonly hosts: readonly Host[];
  readonly config?: Partial<OperatorConfig['powerByDemand']>;
  /** Chooses between hosts that can run a Pod. The default takes the fullest host. */
  readonly choose?: (hosts: readonly Node[]) => Node | undefined;
}

export class DemandFleet {
  now = START;
  readonly config: OperatorConfig['powerByDemand'];
  readonly hosts = new Map<string, Host>();
  readonly nodes = new Map<string, Node>();
  readonly servers = new Map<string, Server>();
  readonly lives = new Map<string, Life>();
  readonly decisions: { at: number; decision: DemandDecision }[] = [];
  /** Broken rules. */
  readonly faults: string[] = [];
  readonly #choose: (hosts: readonly Node[]) => Node | undefined;
  readonly #bound = new Map<string, Set<Pod>>();
  readonly #unbound = new Map<string, Life>();
  /** In the order of their times. */
  readonly #timers: Timer[] = [];
  #emptySince: ReadonlyMap<string, number> = new Map();
  /** Whether something happened after which the scheduler tries all Pods again. */
  #isWoken = false;
  #names = 0;

  constructor({ hosts, config = {}, choose }: FleetOptions) {
    this.config = parseConfig({ powerByDemand: { enabled: true, ...config } }, 'test').powerByDemand;
    this.#choose =
      choose ?? ((nodes) => nodes.toSorted((a, b) => this.#podsOn(b).length - this.#podsOn(a).length)[0]);
    for (const host of hosts) {
      this.hosts.set(host.name, host);
      this.nodes.set(host.name, nodeOf(host));
      this.servers.set(host.name, serverOf(host));
    }
  }

  /** Seconds since the start. */
  get seconds(): number {
    return (this.now - START) / 1000;
  }

  /** Creates the Pod of a VM. */
  createVM(placement: Partial<Placement> = {}): string {
    this.#names += 1;
    const name = `vm-${this.#names}`;
    const options = {
      placement: { dedicatedTo: 'platform-default', ...placement },
      tolerations: [],
      pullSecrets: [],
      priorityClassName: '',
    };
    const requests = { [SLOT_RESOURCE]: '1', cpu: '2', memory: '4Gi' };
    const pod: Pod = {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name, namespace: placement.dedicatedTo ?? 'platform-default', uid: name },
      spec: {
        ...hostPodSpec(options),
        containers: [{ name: MACHINE_CONTAINER, image: '', resources: { requests } }],
      },
      status: {},
    };
    const life = { pod, createdAt: this.now, attempts: 0, backOffUntil: 0 };
    this.lives.set(name, life);
    this.#unbound.set(name, life);
    return name;
  }

  endVM(name: string): void {
    const pod = this.lives.get(name)?.pod;
    if (pod !== undefined) {
      const isBound = this.#bound.get(pod.spec.nodeName ?? '')?.delete(pod);
      this.#isWoken ||= isBound === true;
      this.#unbound.delete(name);
      this.lives.delete(name);
    }
  }

  get waiting(): Life[] {
    return [...this.#unbound.values()];
  }

  /** Stops the machine of a VM. Its disk stays on the host. */
  stopVM(name: string): void {
    this.#setPower(name, 'Stopped', 'Stopped');
  }

  /** Asks for the machine of a stopped VM to run. It runs when its host does. */
  startVM(name: string): void {
    this.#setPower(name, 'Running', 'Stopped');
  }

  #setPower(name: string, power: string, reason: string): void {
    const pod = this.lives.get(name)?.pod;
    if (pod?.spec.nodeName !== undefined) {
      const state = { waiting: { reason } };
      const status = {
        name: MACHINE_CONTAINER,
        state,
        ready: false,
        restartCount: 0,
        image: '',
        imageID: '',
      };
      pod.metadata.annotations = { [DESIRED_ANNOTATION]: JSON.stringify({ powerState: power }) };
      pod.status = { ...pod.status, containerStatuses: [status] };
    }
  }

  /** Returns true if the VM is off, and must run. */
  isAwaited(name: string): boolean {
    const pod = this.lives.get(name)?.pod;
    return pod?.metadata.annotations?.[DESIRED_ANNOTATION] === '{"powerState":"Running"}';
  }

  /** Whether the controller answers. */
  setReachable(name: string, status: 'True' | 'False'): void {
    const conditions = this.#server(name).status?.conditions ?? [];
    this.#patch(name, { conditions: conditions.map((condition) => ({ ...condition, status })) });
  }

  /** The host stops reporting, although it has power. */
  hang(name: string): void {
    this.#setReady(name, 'Unknown');
  }

  /** Forgets what the operator keeps in memory, as at a fail-over. */
  failOver(): void {
    this.#emptySince = new Map();
  }

  /** Does what is due at once. */
  stabilize(): void {
    this.#schedule();
    this.#decide();
  }

  /** Lets time pass. The policy looks after each change, and every `stepMilliseconds`. */
  advance(milliseconds: number, stepMilliseconds = 5_000): void {
    const end = this.now + milliseconds;
    this.stabilize();
    while (this.now < end) {
      const next = this.#timers[0]?.at ?? Number.POSITIVE_INFINITY;
      this.now = Math.min(end, Math.max(next, this.now), this.now + stepMilliseconds);
      while (this.#timers[0] !== undefined && this.#timers[0].at <= this.now) {
        this.#timers.shift()?.run();
      }
      this.stabilize();
    }
  }

  /** Runs something later. */
  after(milliseconds: number, run: () => void): void {
    const at = this.now + milliseconds;
    const later = this.#timers.findIndex((timer) => timer.at > at);
    this.#timers.splice(later === -1 ? this.#timers.length : later, 0, { at, run });
  }

  podsOn(name: string): Pod[] {
    return [...(this.#bound.get(name) ?? [])];
  }

  isOn(name: string): boolean {
    return this.servers.get(name)?.status?.power === 'On';
  }

  /** Returns true if the host is off, not cordoned by people, and without an action. */
  isOffAndUsable(name: string): boolean {
    const { spec } = this.#node(name);
    const server = this.#server(name);
    const isCordoned = spec?.unschedulable === true && server.status?.host === undefined;
    return server.status?.power === 'Off' && !isCordoned && openAction(server) === undefined;
  }

  /** Returns true if the Pod can run on the host, and the host has a free slot. */
  suits(name: string, { spec }: Pod): boolean {
    const { slots = 0 } = this.hosts.get(name) ?? {};
    return suits(spec, this.#node(name)) && this.podsOn(name).length < slots;
  }

  /** Switches a host on or off as an administrator does it. */
  request(name: string, action: 'On' | 'Off', by = 'admin'): void {
    const server = this.#server(name);
    if (openAction(server) === undefined) {
      this.#names += 1;
      const requestedAt = timestamp(this.now);
      this.#patch(name, { request: { id: `request-${this.#names}`, action, requestedAt, by } });
      this.after(BEGIN_MILLISECONDS, () => this.#begin(name));
    }
  }

  cordon(name: string, isCordoned: boolean): void {
    const node = this.#node(name);
    if (this.#server(name).status?.host === undefined) {
      node.spec = { ...node.spec, unschedulable: isCordoned };
      this.#isWoken = true;
    }
  }

  #podsOn({ metadata }: Node): Pod[] {
    return this.podsOn(metadata.name);
  }

  #server(name: string): Server {
    return this.servers.get(name) as Server;
  }

  #node(name: string): Node {
    return this.nodes.get(name) as Node;
  }

  /** Changes a status as the API server does it: into a new object. */
  #patch(name: string, status: ServerStatus): void {
    const server = this.#server(name);
    this.servers.set(name, { ...server, status: { ...server.status, ...status } });
  }

  /** Plays kube-scheduler, which prefers Pods that it has tried less often. */
  #schedule(): void {
    const tried = this.waiting.filter(({ attempts }) => this.#isWoken || attempts === 0);
    this.#isWoken = false;
    for (const life of tried.toSorted((a, b) => a.backOffUntil - b.backOffUntil)) {
      const { pod } = life;
      const nodes = [...this.nodes.values()].filter((node) => this.#hasRoom(node, pod));
      const node = nodes.length === 0 ? undefined : this.#choose(nodes);
      if (node === undefined) {
        life.attempts += 1;
        life.backOffUntil = this.now + Math.min(BACK_OFF_MILLISECONDS, 500 * 2 ** life.attempts);
        pod.status = {
          ...pod.status,
          conditions: [{ type: 'PodScheduled', status: 'False', reason: 'Unschedulable' }],
        };
      } else {
        pod.spec = { ...pod.spec, nodeName: node.metadata.name };
        life.boundAt = this.now;
        this.#unbound.delete(pod.metadata.name);
        this.#bound.set(node.metadata.name, new Set(this.podsOn(node.metadata.name)).add(pod));
      }
    }
  }

  #hasRoom(node: Node, pod: Pod): boolean {
    const isReady = node.status?.conditions?.[0]?.status === 'True';
    const { slots = 0 } = this.hosts.get(node.metadata.name) ?? {};
    return (
      isReady &&
      node.spec?.unschedulable !== true &&
      suits(pod.spec, node) &&
      this.#podsOn(node).length + this.#expectedOn(node, pod) < slots
    );
  }

  /** Returns the number of other Pods that the scheduler expects on the host. */
  #expectedOn({ metadata }: Node, pod: Pod): number {
    return this.waiting.filter(
      (one) => one.pod !== pod && one.pod.status?.nominatedNodeName === metadata.name,
    ).length;
  }

  #decide(): void {
    const { now, config } = this;
    const objects = [...this.nodes.values()].map((node) => ({
      node,
      server: this.#server(node.metadata.name),
      pods: { machines: this.#podsOn(node), tasks: [] },
      jobs: [],
      isAwaited: this.#podsOn(node).some(({ metadata }) => this.isAwaited(metadata.name)),
    }));
    this.#emptySince = seeEmpty(objects, this.#emptySince, now);
    const hosts = objects.map((one) => {
      const seenEmptySince = this.#emptySince.get(one.node.metadata.name);
      return hostFacts({ ...one, seenEmptySince }, { config, now });
    });
    const waiting = this.waiting.map(({ pod }) => pod).filter(isWaiting);
    const isRequesting = [...this.servers.values()].some((server) => isPending(server, now));
    const decision = planDemand({ hosts, waiting, isRequesting, config, now });
    if (decision !== undefined) {
      this.#check(decision);
      this.decisions.push({ at: now, decision });
      this.request(decision.server.metadata.name, decision.action, byDemand(decision.failures));
    }
  }

  /** Checks the rules that hold for every single decision, from the state of the world and not from the facts. */
  #check({ server: { metadata }, action }: DemandDecision): void {
    const { name } = metadata;
    const server = this.#server(name);
    const hasRequest = ({ status }: Server) =>
      status?.request?.by.startsWith('power by demand') === true &&
      this.now < Date.parse(status.request.requestedAt) + 15_000;
    this.#expect(![...this.servers.values()].some(hasRequest), 'two requests at a time');
    const isReachable = server.status?.conditions?.[0]?.status === 'True';
    this.#expect(isReachable, `the controller of ${name} does not answer`);
    this.#expect(openAction(server) === undefined, `an action of ${name} was overwritten`);
    if (action === 'Off') {
      this.#expect(this.podsOn(name).length === 0, `${name} was switched off with a machine`);
      const { architecture } = this.hosts.get(name) as Host;
      const isReady = this.#node(name).status?.conditions?.[0]?.status === 'True';
      const others = [...this.hosts.values()].filter(
        (one) => one.architecture === architecture && one.name !== name && this.#takesVMs(one.name),
      );
      this.#expect(!isReady || others.length >= this.config.floor, `${name} was below the floor`);
    }
  }

  #takesVMs(name: string): boolean {
    const { status, spec } = this.#node(name);
    return status?.conditions?.[0]?.status === 'True' && spec?.unschedulable !== true;
  }

  #expect(isRight: boolean, fault: string): void {
    if (!isRight) {
      this.faults.push(`${this.seconds} s: ${fault}`);
    }
  }

  /** Plays the reconciler of Servers: begins the requested action. */
  #begin(name: string): void {
    const { request } = this.#server(name).status ?? {};
    if (request === undefined) {
      return;
    }
    const lastAction: LastAction = {
      ...request,
      result: 'Running',
      message: '',
      startedAt: timestamp(this.now),
    };
    this.#patch(name, { lastAction, request: undefined });
    if (request.action === 'Off') {
      this.#patch(name, { host: { cordonedAt: timestamp(this.now) } });
      this.#setCordon(name, true);
      this.after(CORDON_MILLISECONDS, () => (this.#isOccupied(name) ? this.#refuse(name) : this.#send(name)));
    } else {
      this.#send(name);
    }
  }

  #isOccupied(name: string): boolean {
    const isOurs = this.#server(name).status?.lastAction?.by !== 'admin';
    const runs = ({ metadata, status }: Pod) =>
      status?.containerStatuses?.[0]?.state?.waiting === undefined || this.isAwaited(metadata.name);
    return this.podsOn(name).some((pod) => isOurs || runs(pod));
  }

  #refuse(name: string): void {
    this.#end(name, 'Refused');
    this.#patch(name, { host: undefined });
    this.#setCordon(name, false);
  }

  #end(name: string, result: LastAction['result']): void {
    const { lastAction } = this.#server(name).status ?? {};
    this.#patch(name, {
      lastAction: { ...(lastAction as LastAction), result, completedAt: timestamp(this.now) },
    });
  }

  #send(name: string): void {
    const { acceptMilliseconds } = this.hosts.get(name) as Host;
    const { lastAction } = this.#server(name).status ?? {};
    const isOff = lastAction?.action === 'Off';
    if (acceptMilliseconds === undefined) {
      this.after(10_000, () => (isOff ? this.#refuse(name) : this.#end(name, 'Failed')));
      return;
    }
    this.after(acceptMilliseconds, () => {
      const accepted = { ...(lastAction as LastAction), acceptedAt: timestamp(this.now) };
      const host = { ...this.#server(name).status?.host, ...(isOff && { offAt: timestamp(this.now) }) };
      this.#patch(name, { lastAction: accepted, host: Object.keys(host).length > 0 ? host : undefined });
      if (isOff) {
        const isOurs = accepted.by !== 'admin';
        this.#expect(!isOurs || this.podsOn(name).length === 0, `${name} went off with a machine`);
        this.#setReady(name, 'Unknown');
      }
      this.after(2_000, () => this.#confirm(name, isOff));
      this.#boot(name, isOff);
    });
  }

  #confirm(name: string, isOff: boolean): void {
    this.#patch(name, { power: isOff ? 'Off' : 'On' });
    this.#end(name, 'Succeeded');
  }

  #boot(name: string, isOff: boolean): void {
    const { bootMilliseconds } = this.hosts.get(name) as Host;
    if (isOff || bootMilliseconds === undefined) {
      return;
    }
    const since = this.#server(name).status?.lastAction?.id;
    this.after(bootMilliseconds, () => {
      // Somebody can have switched the host off again meanwhile.
      if (this.#server(name).status?.lastAction?.id === since) {
        this.#patch(name, { host: undefined });
        this.after(BEGIN_MILLISECONDS, () => this.#open(name));
        this.#setReady(name, 'True');
        const awaited = this.podsOn(name).filter(({ metadata }) => this.isAwaited(metadata.name));
        for (const pod of awaited) {
          pod.metadata.annotations = {};
          pod.status = {};
        }
      }
    });
  }

  /** Removes the cordon as the reconciler of Servers does it. */
  #open(name: string): void {
    const place = placeOn(this.#node(name), this.podsOn(name));
    const waiting = this.waiting.map(({ pod }) => pod).filter(isWaiting);
    for (const { metadata } of choose(place, waiting, (other) => this.nodes.get(other))) {
      const pod = this.lives.get(metadata.name)?.pod as Pod;
      pod.status = { ...pod.status, nominatedNodeName: name };
    }
    this.#setCordon(name, false);
  }

  #setCordon(name: string, isCordoned: boolean): void {
    this.#isWoken ||= !isCordoned;
    const node = this.#node(name);
    node.spec = { ...node.spec, unschedulable: isCordoned };
    node.metadata.annotations = isCordoned ? { [CORDONED_FOR_ANNOTATION]: name } : {};
  }

  #setReady(name: string, status: 'True' | 'Unknown'): void {
    this.#isWoken ||= status === 'True';
    const node = this.#node(name);
    const condition = { type: 'Ready', status, lastTransitionTime: timestamp(this.now) };
    this.nodes.set(name, { ...node, status: { ...node.status, conditions: [condition] } });
  }
}
