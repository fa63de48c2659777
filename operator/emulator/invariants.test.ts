/**
 * Checks the invariants of an Emulator's life over thousands of interleavings. The VM, the scheduler, the agent, people, hosts and crashes
 * of the operator act in any order against the pure plan. The world here is a model of the API server's rules for one name.
 */
import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Emulator, emulatorStatusSchema } from '../../api/v1alpha1/emulator.ts';
import {
  API_VERSION,
  EMULATORS_CONDITION,
  HOST_MARK,
  HOST_VALUE,
  MACHINE_CONDITION,
  MACHINE_CONTAINER,
  VM_FINALIZER,
  VM_UID_LABEL,
} from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { assertHistories } from '../../test/support/properties.ts';
import { reachOfNode, UNBOUND } from '../host/observe.ts';
import { parseConfig } from '../config/config.ts';
import type { ObservedEmulator } from './observe.ts';
import { ownerOf } from './pairing.ts';
import { plan, type EmulatorWrite } from './plan.ts';
import { buildPod, hostOfPod } from './pod.ts';
import { summarize } from './status.ts';

const config = parseConfig(
  { hostLostTimeoutSeconds: 600, emulators: { architectures: ['amd64', 'arm64'] } },
  'test',
);
const SYSTEM_IMAGE = 'emulator.berth.dev/android-36.google_apis';
const ACTIONS = [
  'reconcile',
  'reconcile',
  'reconcile',
  'reconcileAndCrash',
  'vmRuns',
  'vmRuns',
  'vmRunsElsewhere',
  'vmStops',
  'vmFails',
  'vmRestarts',
  'vmIsDeleted',
  'vmIsGone',
  'vmIsOrphaned',
  'garbageIsCollected',
  'schedule',
  'schedule',
  'agentStarts',
  'agentRuns',
  'agentRuns',
  'agentFails',
  'agentEnds',
  'agentEnds',
  'podIsDeleted',
  'emulatorIsDeleted',
  'whenVMStopsDelete',
  'whenVMStopsStop',
  'hostOffersNothing',
  'hostOffersImage',
  'hostOffersOther',
  'hostSilent',
  'hostBack',
  'nodeDeleted',
  'minutePasses',
  'hostLostTimeoutPasses',
] as const;
type Action = (typeof ACTIONS)[number];

const OVER = new Set(['Pending', 'Stopped', 'Failed']);

/** Model of one Emulator, its Pod, the VM with the name in its spec, the VM's Pod and two hosts. The list `faults` has the broken rules. */
class World {
  now = Date.parse('2030-01-01T00:00:00Z');
  emulator: Emulator | undefined = {
    apiVersion: API_VERSION,
    kind: 'Emulator',
    metadata: { name: 'pixel', namespace: 'platform-default', uid: 'emulator-uid', generation: 1 },
    spec: { vmName: 'desk' },
  };
  vm: VM | undefined;
  vmPod: Pod | undefined;
  pod: Pod | undefined;
  readonly nodes = new Map([node('host'), node('other')].map((one) => [one.metadata.name, one]));
  missingSince: number | undefined;
  writes = 0;
  faults: string[] = [];
  #vmsMade = 0;

  observed(): ObservedEmulator {
    const { emulator, vm, vmPod, pod } = this;
    const nodeOf = (one: Pod | undefined) => this.nodes.get(one?.spec.nodeName ?? '');
    return structuredClone({
      emulator: emulator as Emulator,
      vm,
      vmPod,
      vmNode: nodeOf(vmPod),
      pod,
      ...this.#reach(pod),
      now: this.now,
      isNameTaken: false,
      config,
      slotsTaken: undefined,
      hosts: undefined,
    }) as unknown as ObservedEmulator;
  }

  #reach(pod: Pod | undefined) {
    const node = this.nodes.get(pod?.spec.nodeName ?? '');
    const reach = node === undefined ? { ...UNBOUND, silentSince: this.missingSince } : reachOfNode(node);
    return pod?.spec.nodeName === undefined ? UNBOUND : reach;
  }

  /** Runs one reconcile. If the operator crashes, it crashes before it writes the status. */
  reconcile(crashes: boolean): void {
    this.writes = 0;
    if (this.emulator === undefined) {
      return;
    }
    const observed = { ...this.observed(), slotsTaken: () => 0, hosts: () => [] };
    const { write, blocked } = plan(observed);
    if (write !== undefined) {
      this.writes += 1;
      this.#apply(write, observed);
    }
    if (crashes || this.emulator === undefined || write?.kind === 'deleteEmulator') {
      return;
    }
    const status = summarize({ ...observed, emulator: this.emulator, pod: this.pod }, blocked);
    expect(emulatorStatusSchema.safeParse(status).success).toBe(true);
    if (JSON.stringify(status) !== JSON.stringify(this.emulator.status)) {
      this.writes += 1;
      this.emulator.status = structuredClone(status);
    }
  }

  #apply(write: EmulatorWrite, observed: ObservedEmulator): void {
    const emulator = this.emulator as Emulator;
    switch (write.kind) {
      case 'adopt': {
        const owner = { apiVersion: API_VERSION, kind: 'VM', name: 'desk', uid: this.vm?.metadata.uid ?? '' };
        this.#check(ownerOf(emulator) === undefined, 'adopted although it belongs to a VM');
        emulator.metadata.ownerReferences = [owner];
        emulator.metadata.finalizers = [VM_FINALIZER];
        return;
      }
      case 'createPod':
        return this.#create(emulator, write.host);
      case 'deletePod':
        return this.#deletePod(observed, write.force);
      case 'deleteEmulator':
        this.#check(emulator.spec.whenVMStops === 'Delete', 'deleted although whenVMStops is Stop');
        this.#check(!this.#vmLives(), 'deleted although the VM runs');
        this.#check(
          this.pod !== undefined || emulator.status?.failure !== undefined,
          'deleted before its VM ran',
        );
        return this.act('emulatorIsDeleted');
      case 'removeFinalizer':
      default:
        this.#check(this.pod === undefined, 'let go before its Pod was gone');
        this.emulator = undefined;
    }
  }

  #create(emulator: Emulator, host: string): void {
    const vm = this.vm as VM;
    this.#check(this.pod === undefined, 'made twice');
    this.#check(
      vm?.status?.phase === 'Running' && vm.metadata.deletionTimestamp === undefined,
      'made without its VM',
    );
    this.#check(ownerOf(emulator)?.uid === vm.metadata.uid, 'made for another VM of the name');
    this.#check(emulator.metadata.finalizers?.includes(VM_FINALIZER) === true, 'made without a finalizer');
    this.#check(host === this.vmPod?.spec.nodeName, 'made for another host');
    this.#check(emulator.status?.failure?.reason !== 'DeployTimeout', 'made again after a timeout');
    this.#check(this.#hostMay(host), 'made for a host that cannot run it');
    this.pod = buildPod({ emulator, vm, host, config }) as Pod;
  }

  #deletePod(observed: ObservedEmulator, force: boolean): void {
    const pod = this.pod as Pod;
    const { emulator, vmPod } = observed;
    const isAtHome = hostOfPod(pod) === vmPod?.spec.nodeName;
    const isFailed = emulator.status?.failure?.reason === 'DeployTimeout';
    const isLeft =
      emulator.metadata.deletionTimestamp !== undefined || isFailed || pod.spec.nodeName === undefined;
    const isDeleted = pod.metadata.deletionTimestamp !== undefined;
    this.#check(isLeft || isDeleted || !this.#vmLives() || !isAtHome, 'ended beside its running VM');
    const host = this.nodes.get(pod.spec.nodeName ?? '');
    const isSilent = host?.status?.conditions?.some(
      ({ type, status }) => type === 'Ready' && status === 'Unknown',
    );
    this.#check(!force || host === undefined || isSilent === true, 'forced although its host answers');
    this.#markDeleted(force);
  }

  /** Deletes the Pod like the API server: an unbound Pod and a forced deletion at once. */
  #markDeleted(force: boolean): void {
    if (this.pod !== undefined && !force && this.pod.spec.nodeName !== undefined) {
      this.pod.metadata.deletionTimestamp ??= this.#time();
    } else {
      this.pod = undefined;
    }
  }

  act(action: Action): void {
    if (action.startsWith('reconcile')) {
      this.reconcile(action === 'reconcileAndCrash');
    } else if (action.startsWith('vm')) {
      this.#actOnVM(action);
    } else if (action.startsWith('agent') || action === 'schedule') {
      this.#actOnPod(action);
    } else {
      this.#actOnRest(action);
    }
  }

  #actOnVM(action: Action): void {
    if (action === 'vmRuns' || action === 'vmRunsElsewhere') {
      return this.#runVM(action === 'vmRuns' ? 'host' : 'other');
    }
    if (this.vm === undefined) {
      return;
    }
    if (action === 'vmIsDeleted') {
      this.vm.metadata.deletionTimestamp ??= this.#time();
    } else if (action === 'vmIsGone' || action === 'vmIsOrphaned') {
      this.#endVM(action === 'vmIsOrphaned');
    } else if (this.vm.status?.phase !== 'Failed') {
      const phase = { vmStops: 'Stopped', vmRestarts: 'Starting' }[action as string] ?? 'Failed';
      this.vm.status = {
        phase,
        ...(phase === 'Failed' && { failure: { reason: 'Crashed', message: '', time: '' } }),
      };
    }
  }

  #runVM(host: string): void {
    if (this.vm === undefined && this.nodes.has(host)) {
      const uid = `vm-${(this.#vmsMade += 1)}`;
      const metadata = { name: 'desk', namespace: 'platform-default', uid };
      this.vm = { apiVersion: API_VERSION, kind: 'VM', metadata, spec: {}, status: { phase: 'Running' } };
      const pod = { ...metadata, uid: `pod-${uid}`, labels: { [VM_UID_LABEL]: uid } };
      this.vmPod = { apiVersion: 'v1', kind: 'Pod', metadata: pod, spec: { nodeName: host, containers: [] } };
    } else if (this.vm?.status?.failure === undefined && this.vm !== undefined) {
      this.vm.status = { phase: 'Running' };
      this.#moveVM(host);
    }
  }

  #moveVM(host: string): void {
    if (this.vmPod !== undefined && this.nodes.has(host)) {
      this.vmPod.spec = { ...this.vmPod.spec, nodeName: host };
    }
  }

  /** Deletes the VM for good. If the user asked to orphan its dependents, they lose their references to it. */
  #endVM(isOrphaned: boolean): void {
    if (isOrphaned && this.emulator !== undefined) {
      this.emulator.metadata.ownerReferences = [];
    }
    this.vm = undefined;
    this.vmPod = undefined;
  }

  /** Deletes the Emulator if its owner is gone. The garbage collector may do this late. */
  #collectGarbage(): void {
    const owner = this.emulator && ownerOf(this.emulator);
    if (owner !== undefined && owner.uid !== this.vm?.metadata.uid) {
      this.act('emulatorIsDeleted');
    }
  }

  #actOnPod(action: Action): void {
    const pod = this.pod;
    if (action === 'schedule' && pod?.spec.nodeName === undefined && pod !== undefined) {
      const host = hostOfPod(pod) ?? '';
      pod.spec = this.nodes.has(host) ? { ...pod.spec, nodeName: host } : pod.spec;
      const bound = { type: 'PodScheduled', status: 'True' as const, lastTransitionTime: this.#time() };
      pod.status = { phase: 'Pending', conditions: [bound] };
    } else if (pod?.spec.nodeName === undefined || !this.#isUp(pod.spec.nodeName)) {
      return;
    } else if (action === 'agentEnds') {
      this.pod = pod.metadata.deletionTimestamp === undefined ? pod : undefined;
    } else if (
      pod.status?.phase === 'Pending' ||
      (pod.status?.phase === 'Running' && action === 'agentFails')
    ) {
      this.#report(pod, action);
    }
  }

  #report(pod: Pod, action: Action): void {
    const state = {
      agentStarts: { waiting: { reason: 'Starting' } },
      agentRuns: { running: { startedAt: this.#time() } },
      agentFails: { terminated: { exitCode: 1, reason: 'Crashed', message: 'FATAL: no' } },
    }[action as 'agentRuns'];
    const phase = { agentStarts: 'Pending', agentRuns: 'Running', agentFails: 'Failed' }[
      action as 'agentRuns'
    ];
    const container = {
      name: MACHINE_CONTAINER,
      image: '',
      imageID: '',
      ready: true,
      restartCount: 0,
      state,
    };
    const adb = {
      type: MACHINE_CONDITION,
      status: 'True' as const,
      message: '{"adb":{"address":"10.0.0.9","port":5555}}',
    };
    const others = pod.status?.conditions?.filter(({ type }) => type !== MACHINE_CONDITION) ?? [];
    pod.status = { phase: phase as 'Running', conditions: [...others, adb], containerStatuses: [container] };
  }

  #actOnRest(action: Action): void {
    const host = this.nodes.get('host');
    if (action === 'podIsDeleted') {
      this.#markDeleted(false);
    } else if (action === 'emulatorIsDeleted' && this.emulator !== undefined) {
      this.emulator.metadata.deletionTimestamp ??= this.#time();
      this.emulator = this.emulator.metadata.finalizers === undefined ? undefined : this.emulator;
    } else if (action.startsWith('whenVMStops') && this.emulator !== undefined) {
      this.emulator.spec.whenVMStops = action === 'whenVMStopsDelete' ? 'Delete' : 'Stop';
    } else if (action === 'minutePasses' || action === 'hostLostTimeoutPasses') {
      this.now += action === 'minutePasses' ? 60_000 : 600_000;
    } else if (action === 'garbageIsCollected') {
      this.#collectGarbage();
    } else if (action === 'nodeDeleted') {
      this.missingSince = this.nodes.delete('host') ? this.now : this.missingSince;
    } else if (host !== undefined || action === 'hostBack') {
      this.nodes.set('host', host ?? node('host'));
      this.#changeHost(this.nodes.get('host') ?? node('host'), action);
    }
  }

  #changeHost(host: Node, action: Action): void {
    const conditions = host.status?.conditions ?? [];
    const type = action.startsWith('hostOffers') ? EMULATORS_CONDITION : 'Ready';
    const status = { hostOffersNothing: 'False', hostSilent: 'Unknown' }[action as string] ?? 'True';
    const kept = conditions.filter((one) => one.type !== type);
    const isNew = conditions.find((one) => one.type === type)?.status !== status;
    if (isNew) {
      const changed = { type, status: status as 'True', lastTransitionTime: this.#time() };
      host.status = { conditions: [...kept, changed] };
      this.#followHost(action);
    }
    const { [SYSTEM_IMAGE]: _image, ...labels } = host.metadata.labels ?? {};
    const image = action === 'hostOffersImage' ? { [SYSTEM_IMAGE]: '' } : {};
    host.metadata.labels = action.startsWith('hostOffers')
      ? { ...labels, ...image }
      : (host.metadata.labels ?? {});
  }

  /** Puts a running VM on the host into the state in which the VM's controller would put it. */
  #followHost(action: Action): void {
    if (
      this.vm?.status?.failure === undefined &&
      this.vm !== undefined &&
      this.vmPod?.spec.nodeName === 'host'
    ) {
      if (action === 'hostSilent') {
        const ready = {
          type: 'Ready',
          status: 'False' as const,
          reason: 'HostLost',
          message: '',
          lastTransitionTime: '',
        };
        this.vm.status = { phase: 'Failed', conditions: [ready] };
      } else if (action === 'hostBack') {
        this.vm.status = { phase: 'Running' };
      }
    }
  }

  /** Returns true if the Emulator has a Pod on another host than its running VM. */
  isAstray(): boolean {
    const isLeaving = this.emulator?.metadata.deletionTimestamp !== undefined;
    const isRunning = this.vm?.status?.phase === 'Running' && this.#vmLives();
    return (
      this.pod !== undefined && isRunning && !isLeaving && hostOfPod(this.pod) !== this.vmPod?.spec.nodeName
    );
  }

  #hostMay(name: string): boolean {
    const { metadata, status } = this.nodes.get(name) ?? {};
    const offer = status?.conditions?.find(({ type }) => type === EMULATORS_CONDITION);
    return offer === undefined || (offer.status === 'True' && metadata?.labels?.[SYSTEM_IMAGE] === '');
  }

  #isUp(name: string): boolean {
    const conditions = this.nodes.get(name)?.status?.conditions ?? [];
    return conditions.some(({ type, status }) => type === 'Ready' && status === 'True');
  }

  /** Returns true if the machine of the Emulator's own VM may run, so that its emulator must not be ended. */
  #vmLives(): boolean {
    const owner = this.emulator && ownerOf(this.emulator);
    const isOther = owner !== undefined && owner.uid !== this.vm?.metadata.uid;
    const { phase = '', failure } = this.vm?.status ?? {};
    const isLost = phase === 'Failed' && failure === undefined;
    return (
      this.vm !== undefined &&
      !isOther &&
      this.vm.metadata.deletionTimestamp === undefined &&
      (isLost || !OVER.has(phase))
    );
  }

  #check(holds: boolean, fault: string): void {
    this.faults.push(...(holds ? [] : [fault]));
  }

  #time(): string {
    return new Date(this.now).toISOString();
  }
}

function node(name: string): Node {
  const conditions = [{ type: 'Ready', status: 'True' as const, lastTransitionTime: '2030-01-01T00:00:00Z' }];
  const labels = { [HOST_MARK]: HOST_VALUE, 'kubernetes.io/arch': 'arm64' };
  return { apiVersion: 'v1', kind: 'Node', metadata: { name, labels }, status: { conditions } };
}

function afterAll(actions: readonly Action[]): World {
  const world = new World();
  for (const action of actions) {
    world.act(action);
  }
  return world;
}

/** Lets the operator and the agent act until the operator has nothing to write. */
function stabilize(world: World): World {
  for (let pass = 0; pass < 20; pass += 1) {
    world.act('agentEnds');
    world.act('reconcile');
    if (world.writes === 0) {
      break;
    }
  }
  return world;
}

const HISTORIES = { step: fc.constantFrom(...ACTIONS), maxLength: 60, numRuns: 1_000 };
/** Time limit in milliseconds for thousands of small reconciles, on a machine that may run other work at the same time. */
const TIMEOUT_MILLISECONDS = 60_000;

describe('an Emulator, whatever happens in whatever order', { timeout: TIMEOUT_MILLISECONDS }, () => {
  it('has one Pod at most, on the host of its own VM, and keeps it while that VM may run', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = stabilize(afterAll([...actions, 'hostBack']));
      expect([world.faults, world.isAstray()]).toEqual([[], false]);
    });
  });

  it('follows its VM to another host', () => {
    const world = afterAll(['vmRuns', 'reconcile', 'reconcile', 'schedule', 'agentRuns', 'vmRunsElsewhere']);
    expect(hostOfPod(world.pod as Pod)).toBe('host');
    expect([hostOfPod(stabilize(world).pod as Pod), world.faults]).toEqual(['other', []]);
  });

  it('comes to rest and then writes nothing', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = stabilize(afterAll(actions));
      world.act('reconcile');
      expect(world.writes).toBe(0);
    });
  });

  it('has no Pod once its VM is off, and has one again when its VM runs', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = afterAll([...actions, 'garbageIsCollected', 'whenVMStopsStop', 'hostBack', 'vmStops']);
      const { vm } = stabilize(world);
      const isOff = vm?.status?.phase === 'Stopped';
      const isLeft = world.emulator?.metadata.deletionTimestamp !== undefined || !world.nodes.has('host');
      fc.pre(isOff && !isLeft && vm.metadata.deletionTimestamp === undefined);
      expect(world.pod).toBeUndefined();
      world.act('hostOffersImage');
      world.act('vmRuns');
      stabilize(world);
      const host = world.emulator && world.vmPod?.spec.nodeName;
      expect([world.pod && hostOfPod(world.pod), world.faults]).toEqual([host, []]);
    });
  });

  it('goes with its Pod once it is deleted and its host answers', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = stabilize(afterAll([...actions, 'hostBack', 'emulatorIsDeleted']));
      expect([world.emulator, world.pod]).toEqual([undefined, undefined]);
    });
  });
});
