/**
 * Checks the invariants of a VM's life over thousands of interleavings. The scheduler, the agent, people and crashes of the
 * operator act in any order against the pure steps. The world here is a model of the API server's rules for one name.
 */
import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  DESIRED_ANNOTATION,
  GIVEN_UP_ANNOTATION,
  HOST_MARK,
  HOST_VALUE,
  MACHINE_CONTAINER,
  POD_FINALIZER,
  VM_FINALIZER,
} from '../../api/v1alpha1/names.ts';
import { desiredSchema, parseDocument } from '../../api/v1alpha1/machine.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { assertHistories } from '../../test/support/properties.ts';
import { parseConfig } from '../config/config.ts';
import { isOutOfService } from '../host/observe.ts';
import { givenUpOn, macAddressOf } from './abandoned.ts';
import { gatherFacts } from './facts.ts';
import type { Observed, ResizeRefusal, Size } from './observe.ts';
import { hasRun, podAttempt } from './podstate.ts';
import { podSize, refusedAgain, resizedContainers } from './size.ts';
import { summarize } from './status.ts';
import { stepsFor } from './steps/index.ts';
import type { Write } from './steps/step.ts';

const none = () => undefined;
const config = parseConfig({ hostLostTimeoutSeconds: 600 }, 'test');
const ACTIONS = [
  'reconcile',
  'reconcile',
  'reconcile',
  'reconcileAndCrash',
  'schedule',
  'agentStarts',
  'agentStarts',
  'agentFails',
  'agentRefuses',
  'agentEnds',
  'agentTellsSize',
  'resizeVM',
  'quotaChanges',
  'deletePod',
  'deleteVM',
  'hostSilent',
  'hostBack',
  'nodeDeleted',
  'outOfService',
  'minutePasses',
  'hostLostTimeoutPasses',
] as const;
type Action = (typeof ACTIONS)[number];

/** Model of one VM, the Pod of its name, and one host, with counts of past events. */
class World {
  now = Date.parse('2030-01-01T00:00:00Z');
  vm: VM | undefined = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: {
      name: 'x',
      namespace: 'platform-default',
      uid: 'vm-uid',
      generation: 1,
      creationTimestamp: '2030-01-01T00:00:00Z',
    },
    spec: { image: 'registry.example/guest:1' },
  };
  pod: Pod | undefined;
  node: Node | undefined = {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'host', labels: { [HOST_MARK]: HOST_VALUE } },
    status: { conditions: [{ type: 'Ready', status: 'True' }] },
  };
  podsCreated = 0;
  /** Attempt of the last Pod that was created. */
  attempt = 0;
  ranOnce = false;
  createdAfterRun = 0;
  releasedUnobserved = 0;
  writesInLastPass = 0;
  /** Processors that the namespace's ResourceQuota allows. */
  quota = 4;
  resizeRefused: ResizeRefusal | undefined;
  resizesAsked = 0;
  toldUncounted = 0;

  observed(): Observed {
    const vm = this.vm as VM;
    return {
      vm: structuredClone(vm),
      pod: structuredClone(this.pod),
      nameTakenBy: undefined,
      node: this.pod?.spec.nodeName === undefined ? undefined : structuredClone(this.node),
      resizeRefused: this.resizeRefused,
      lookups: { vmConfig: none, image: none, iso: none, credentials: none },
      portHolder: () => undefined,
      hosts: () => [],
      config,
      now: this.now,
      clusterUid: 'cluster',
      random: () => 'ab'.repeat(32),
    };
  }

  /** Runs one reconcile. `writes` is the number of writes before the operator crashes. */
  reconcile(writes: number): void {
    this.writesInLastPass = 0;
    if (this.vm === undefined) {
      return;
    }
    let left = writes;
    for (const step of stepsFor(this.observed())) {
      if (this.vm === undefined) {
        return;
      }
      const result = step(this.observed(), gatherFacts(this.observed()));
      for (const write of result.writes) {
        if (left-- === 0) {
          return;
        }
        this.apply(write);
      }
      if (result.outcome.kind !== 'done') {
        break;
      }
    }
    if (this.vm !== undefined && left > 0 && this.vm.metadata.finalizers?.includes(VM_FINALIZER) === true) {
      const observed = this.observed();
      const status = summarize(observed, gatherFacts(observed), {});
      if (JSON.stringify(status) !== JSON.stringify(this.vm.status)) {
        this.writesInLastPass += 1;
        this.vm.status = structuredClone(status);
      }
    }
  }

  apply(write: Write): void {
    this.writesInLastPass += 1;
    const vm = this.vm as VM;
    switch (write.kind) {
      case 'addFinalizer':
        vm.metadata.finalizers = [...(vm.metadata.finalizers ?? []), VM_FINALIZER];
        break;
      case 'removeFinalizer':
        vm.metadata.finalizers = vm.metadata.finalizers?.filter((name) => name !== VM_FINALIZER) ?? [];
        this.#collect();
        break;
      case 'createPod':
        this.#createPod(write.pod as unknown as Pod);
        break;
      case 'createSecret':
        break;
      case 'resizePod':
        this.writesInLastPass -= 1;
        this.#resize(write.size);
        break;
      case 'patchDesired':
        this.#tell(write.text);
        (this.pod as Pod).metadata.annotations = {
          ...this.pod?.metadata.annotations,
          [DESIRED_ANNOTATION]: write.text,
        };
        break;
      case 'deletePod':
        this.#expectNoRunLost();
        this.markPodDeleted();
        break;
      case 'rememberGivenUp':
        (this.node as Node).metadata.annotations = {
          [GIVEN_UP_ANNOTATION]: JSON.stringify(write.macAddresses),
        };
        break;
      case 'releasePod':
        this.#releasePod();
        break;
      case 'deleteVM':
        vm.metadata.deletionTimestamp ??= new Date(this.now).toISOString();
        this.#collect();
        break;
    }
  }

  /**
   * Resizes the Pod by the API server's rules. A resize is refused while the host of a running machine reports no resources, and
   * when it exceeds the quota.
   */
  #resize(size: Size): void {
    const pod = this.pod as Pod;
    this.resizesAsked += 1;
    const before = podSize(pod)?.cpu ?? 0;
    const container = pod.status?.containerStatuses?.[0];
    const unsupported = container !== undefined && container.resources === undefined;
    if (unsupported || (size.cpu > before && size.cpu > this.quota)) {
      this.resizeRefused = refusedAgain(this.observed(), size, 'exceeded quota');
      return;
    }
    this.writesInLastPass += 1;
    this.resizeRefused = undefined;
    this.pod = { ...pod, spec: { ...pod.spec, containers: resizedContainers(pod, size) } };
  }

  #tell(text: string): void {
    const counted = podSize(this.pod as Pod)?.cpu ?? 0;
    if (desiredSchema.parse(parseDocument(text)).cpu > counted) {
      this.toldUncounted += 1;
    }
  }

  #createPod(pod: Pod): void {
    expect(this.pod, 'one Pod per VM').toBeUndefined();
    expect(podAttempt(pod), 'no placement is tried twice').toBeGreaterThan(this.attempt);
    expect(podAttempt(pod), 'a Pod has the attempt that is stored').toBe(this.vm?.status?.attempt ?? 1);
    this.attempt = podAttempt(pod);
    this.podsCreated += 1;
    if (this.ranOnce) {
      this.createdAfterRun += 1;
    }
    this.pod = { ...structuredClone(pod), status: { phase: 'Pending' } };
    this.pod.metadata.uid = `pod-${this.podsCreated}`;
    this.pod.metadata.creationTimestamp = new Date(this.now).toISOString();
  }

  #expectNoRunLost(): void {
    const { metadata, status } = this.vm as VM;
    const isWanted = metadata.deletionTimestamp === undefined && status?.failure === undefined;
    expect(isWanted && hasRun(this.pod as Pod), 'the Pod of a machine that ran stays').toBe(false);
  }

  #releasePod(): void {
    const pod = this.pod as Pod;
    const terminated = pod.status?.containerStatuses?.[0]?.state?.terminated !== undefined;
    const { node } = this.observed();
    if (hasRun(pod) && !terminated && node !== undefined && !isOutOfService(node)) {
      expect(givenUpOn(node), 'what may run on a silent host is remembered there').toContain(
        macAddressOf(pod),
      );
    }
    const vm = this.vm as VM;
    const unobserved =
      hasRun(pod) && vm.metadata.deletionTimestamp === undefined && vm.status?.firstRunningTime === undefined;
    if (unobserved) {
      this.releasedUnobserved += 1;
    }
    expect(pod.metadata.deletionTimestamp, 'only a Pod that is being deleted is let go').toBeDefined();
    expect(
      terminated || pod.spec.nodeName === undefined || this.#hostIsGivenUp(),
      'its machine has ended',
    ).toBe(true);
    pod.metadata.finalizers = pod.metadata.finalizers?.filter((name) => name !== POD_FINALIZER) ?? [];
    this.pod = undefined;
  }

  #hostIsGivenUp(): boolean {
    const fenced = this.node?.spec?.taints?.some(({ key }) => key === 'node.kubernetes.io/out-of-service');
    const ready = this.node?.status?.conditions?.[0];
    const silent =
      ready?.status === 'Unknown' && this.now - Date.parse(ready.lastTransitionTime ?? '') >= 600_000;
    // A machine that has run may be running. Only people abandon it, by deleting its VM.
    const mayBeLost = this.vm?.metadata.deletionTimestamp !== undefined || !this.ranOnce;
    return this.node === undefined || fenced === true || (silent && mayBeLost);
  }

  markPodDeleted(): void {
    if (this.pod !== undefined) {
      this.pod.metadata.deletionTimestamp ??= new Date(this.now).toISOString();
    }
  }

  #collect(): void {
    if (
      this.vm?.metadata.deletionTimestamp !== undefined &&
      (this.vm.metadata.finalizers ?? []).length === 0
    ) {
      this.vm = undefined;
    }
  }

  #hostIsUp(): boolean {
    return this.node?.status?.conditions?.[0]?.status === 'True';
  }

  act(action: Action): void {
    const { pod } = this;
    const bound = pod?.spec.nodeName !== undefined && this.#hostIsUp();
    const phase = pod?.status?.phase;
    switch (action) {
      case 'reconcile':
        return this.reconcile(Number.POSITIVE_INFINITY);
      case 'reconcileAndCrash':
        this.reconcile(1);
        this.resizeRefused = undefined;
        return;
      case 'schedule':
        if (pod !== undefined && pod.metadata.deletionTimestamp === undefined && this.#hostIsUp()) {
          pod.spec.nodeName = 'host';
        }
        return;
      case 'agentStarts':
        if (
          bound &&
          pod !== undefined &&
          phase === 'Pending' &&
          pod.metadata.deletionTimestamp === undefined
        ) {
          this.ranOnce = true;
          this.#setState('Running', { running: { startedAt: new Date(this.now).toISOString() } });
        }
        return;
      case 'agentFails':
        if (bound && (phase === 'Pending' || phase === 'Running')) {
          this.#end('Crashed');
        }
        return;
      case 'agentRefuses':
        if (bound && phase === 'Pending') {
          this.#end('PortTaken');
        }
        return;
      case 'agentEnds':
        if (bound && pod?.metadata.deletionTimestamp !== undefined && phase !== 'Failed') {
          this.#end('Deleted');
        }
        return;
      case 'agentTellsSize': {
        const container = bound ? pod?.status?.containerStatuses?.[0] : undefined;
        if (container !== undefined) {
          Object.assign(container, { resources: pod?.spec.containers[0]?.resources });
        }
        return;
      }
      case 'deletePod':
        return this.markPodDeleted();
      case 'deleteVM':
        if (this.vm !== undefined) {
          this.vm.metadata.deletionTimestamp ??= new Date(this.now).toISOString();
          this.#collect();
        }
        return;
      default:
        return this.#actOnHost(action);
    }
  }

  #actOnHost(action: Action): void {
    if (action === 'minutePasses') {
      this.now += 60_000;
    } else if (action === 'hostLostTimeoutPasses') {
      this.now += 600_000;
    } else if (action === 'quotaChanges') {
      this.quota = this.quota === 4 ? 16 : 4;
    } else if (action === 'resizeVM') {
      this.#resizeVM();
    } else if (action === 'nodeDeleted') {
      this.node = undefined;
    } else if (action === 'outOfService' && this.node !== undefined && !this.#hostIsUp()) {
      this.node.spec = { taints: [{ key: 'node.kubernetes.io/out-of-service', effect: 'NoExecute' }] };
    } else if (this.node !== undefined && (action === 'hostSilent' || action === 'hostBack')) {
      const status = action === 'hostBack' ? 'True' : 'Unknown';
      const before = this.node.status?.conditions?.[0];
      if (before?.status !== status) {
        this.node.status = {
          conditions: [{ type: 'Ready', status, lastTransitionTime: new Date(this.now).toISOString() }],
        };
      }
    }
  }

  /**
   * Doubles the processors that the VM requests, from 2 up to 32, and then returns to 2. The sizes are within the smaller quota,
   * within the larger quota, and above both.
   */
  #resizeVM(): void {
    if (this.vm !== undefined) {
      const { cpu = 2 } = this.vm.spec;
      this.vm.spec = { ...this.vm.spec, cpu: cpu >= 32 ? 2 : cpu * 2 };
    }
  }

  #setState(phase: 'Running' | 'Failed', state: object): void {
    const pod = this.pod as Pod;
    const container = {
      name: MACHINE_CONTAINER,
      ready: true,
      restartCount: 0,
      image: '',
      imageID: '',
      state,
    };
    pod.status = { phase, containerStatuses: [container] };
  }

  #end(reason: string): void {
    const running = this.pod?.status?.containerStatuses?.[0]?.state?.running;
    const startedAt = running?.startedAt;
    this.#setState('Failed', {
      terminated: { exitCode: 137, reason, message: 'last words', ...(startedAt && { startedAt }) },
    });
  }
}

function worldAfter(actions: readonly Action[]): World {
  const world = new World();
  for (const action of actions) {
    world.act(action);
  }
  return world;
}

function settle(world: World): void {
  for (let pass = 0; pass < 20; pass += 1) {
    world.act('reconcile');
    if (world.writesInLastPass === 0) {
      return;
    }
  }
}

const HISTORIES = { step: fc.constantFrom(...ACTIONS), maxLength: 60, numRuns: 500 };
/** Time limit in milliseconds for thousands of small reconciles, on a machine that may run other work at the same time. */
const TIMEOUT_MILLISECONDS = 60_000;

describe('a VM, in any order of events,', { timeout: TIMEOUT_MILLISECONDS }, () => {
  it('no-lost-disk: is never placed again after a machine of it ran, and no machine runs unseen', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = worldAfter(actions);
      settle(world);
      expect(world.createdAfterRun).toBe(0);
      expect(world.releasedUnobserved).toBe(0);
    });
  });

  it('no-orphan: is removed with its Pod after its deletion while its host is up', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = worldAfter(actions);
      world.act('hostBack');
      world.act('deleteVM');
      for (let round = 0; round < 6; round += 1) {
        world.act('reconcile');
        world.act('agentEnds');
      }
      settle(world);
      expect(world.vm).toBeUndefined();
      expect(world.pod).toBeUndefined();
    });
  });

  it('idle-quiet: comes to rest and writes no more while nothing changes', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = worldAfter(actions);
      settle(world);
      world.act('reconcile');
      expect(world.writesInLastPass).toBe(0);
    });
  });

  it('tells its host no size that the Pod does not count, and does not repeat a refused size at once', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = worldAfter(actions);
      expect(world.toldUncounted).toBe(0);
      settle(world);
      const asked = world.resizesAsked;
      world.act('reconcile');
      expect(world.resizesAsked).toBe(asked);
    });
  });

  it('keeps a recorded failure forever and unchanged', (context) => {
    assertHistories(context, HISTORIES, (actions) => {
      const world = new World();
      let recorded: unknown;
      for (const action of actions) {
        world.act(action);
        const failure = world.vm?.status?.failure;
        if (recorded !== undefined && world.vm !== undefined) {
          expect(failure).toEqual(recorded);
        }
        recorded = failure ?? recorded;
      }
    });
  });

  it('is remembered at a silent host that may run its machine, when it is deleted', () => {
    const world = worldAfter(['reconcile', 'schedule', 'agentStarts', 'reconcile', 'hostSilent']);
    const macAddress = macAddressOf(world.pod as Pod);
    world.now += 601_000;
    world.act('deleteVM');
    for (let pass = 0; pass < 3; pass += 1) {
      world.act('reconcile');
    }
    expect(world.vm).toBeUndefined();
    expect(givenUpOn(world.node as Node)).toEqual([macAddress]);
  });
});
