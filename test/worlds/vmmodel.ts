/**
 * Model of the API server's rules for one VM, the Pod of its name and one host. The scheduler, the agent, people, the garbage collector and
 * crashes of the operator act in any order against the operator's pure steps.
 */
import { expect } from 'vitest';
import {
  ADOPTS_ANNOTATION,
  AWAITED_ANNOTATION,
  DESIRED_ANNOTATION,
  GIVEN_UP_ANNOTATION,
  HOST_MARK,
  HOST_VALUE,
  POD_FINALIZER,
  VM_FINALIZER,
} from '../../api/v1alpha1/names.ts';
import { awaitedOn, awaitedText, desiredSchema, parseDocument } from '../../api/v1alpha1/machine.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { parseConfig } from '../../operator/config/config.ts';
import { reachOfNode, UNBOUND } from '../../operator/host/observe.ts';
import { givenUpOn, macAddressOf } from '../../operator/vm/abandoned.ts';
import { isBetweenPods, successorOf } from '../../operator/vm/adoption.ts';
import { gatherFacts } from '../../operator/vm/facts.ts';
import type { ObservedVM, ResizeRefusal, Size } from '../../operator/vm/observe.ts';
import { hasRun, podAttempt, terminated } from '../../operator/podbacked/pod.ts';
import { podSize, refusedAgain, resizedContainers } from '../../operator/vm/size.ts';
import { summarize } from '../../operator/vm/status.ts';
import { stepsFor, type VMWrite } from '../../operator/vm/steps.ts';

const none = () => undefined;
const config = parseConfig({ hostLostTimeoutSeconds: 600 }, 'test');
/** A VM that waits for its Pod. The model needs no time for this wait. */
export const AWAITS_VM = { 'vm-uid': { vm: 'platform-default/x', since: '2030-01-01T00:00:00Z' } };

/** Model of one VM, the Pod of its name, and one host, with counts of past events. */
export class VMModel {
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
  /** Time since which the Node is missing, in milliseconds since the epoch. */
  missingSince: number | undefined;
  lastNode: Node | undefined;
  isGivenUp = false;
  /** Stored Pod that will continue the machine. */
  successor: Pod | undefined;
  /** Whether the host has the machine of the VM, with its disk. It can have it without a Pod. */
  hasMachine = false;
  disksLost = 0;
  writesInLastPass = 0;
  /** Processors that the namespace's ResourceQuota allows. */
  quota = 4;
  resizeRefused: ResizeRefusal | undefined;
  resizesAsked = 0;
  reportedUncounted = 0;

  observed(): ObservedVM {
    const vm = this.vm as VM;
    const { firstRunningTime, failure } = vm.status ?? {};
    const isContinued = firstRunningTime !== undefined && failure === undefined && this.pod === undefined;
    const successor = isContinued && vm.metadata.deletionTimestamp === undefined ? this.successor : undefined;
    return {
      vm: structuredClone(vm),
      pod: structuredClone(this.pod),
      nameTakenBy: undefined,
      successor: structuredClone(successor),
      ...this.reach(this.pod ?? successor),
      resizeRefused: this.resizeRefused,
      snapshots: [],
      lookups: { vmConfig: none, image: none, iso: none, credentials: none },
      portHolder: () => undefined,
      hosts: () => [],
      startingHosts: () => [],
      isDedicated: () => false,
      config,
      now: this.now,
      clusterUid: 'cluster',
      random: () => 'ab'.repeat(32),
    };
  }

  reach(pod: Pod | undefined) {
    if (pod?.spec.nodeName === undefined) {
      return UNBOUND;
    }
    if (this.node === undefined) {
      return { node: undefined, silentSince: this.missingSince ?? this.now, isGivenUp: this.isGivenUp };
    }
    const reach = reachOfNode(structuredClone(this.node));
    return { ...reach, isGivenUp: reach.isGivenUp || this.isGivenUp };
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
    if (this.vm !== undefined && left > 0 && isBetweenPods(this.observed())) {
      return;
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

  apply(write: VMWrite): void {
    this.writesInLastPass += 1;
    const vm = this.vm as VM;
    switch (write.kind) {
      case 'addFinalizer':
        vm.metadata.finalizers = [...(vm.metadata.finalizers ?? []), VM_FINALIZER];
        break;
      case 'removeFinalizer':
        vm.metadata.finalizers = vm.metadata.finalizers?.filter((name) => name !== VM_FINALIZER) ?? [];
        this.collect();
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
        this.markPodDeleted(write.graceSeconds ?? 30);
        break;
      case 'rememberGivenUp':
        (this.node as Node).metadata.annotations = {
          [GIVEN_UP_ANNOTATION]: JSON.stringify(write.macAddresses),
        };
        break;
      case 'releasePod':
        this.#releasePod();
        break;
      case 'saveSuccessor':
        this.successor = {
          apiVersion: 'v1',
          kind: 'Pod',
          ...structuredClone(successorOf(this.pod as Pod)),
        } as Pod;
        break;
      case 'awaitPod':
        (this.node as Node).metadata.annotations = { [AWAITED_ANNOTATION]: awaitedText(AWAITS_VM) ?? '' };
        break;
      case 'deleteVM':
        vm.metadata.deletionTimestamp ??= new Date(this.now).toISOString();
        this.collect();
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
    const { cpu, deletion } = desiredSchema.parse(parseDocument(text));
    // A machine that ends starts no more, so its size is that of before.
    if (deletion === undefined && cpu > counted) {
      this.reportedUncounted += 1;
    }
  }

  #createPod(pod: Pod): void {
    expect(this.pod, 'one Pod per VM').toBeUndefined();
    if (pod.metadata.annotations?.[ADOPTS_ANNOTATION] !== undefined) {
      expect(pod.spec.nodeName, 'a machine continues on its host').toBe('host');
      this.#storePod(pod);
      return;
    }
    expect(podAttempt(pod), 'no placement is tried twice').toBeGreaterThan(this.attempt);
    expect(podAttempt(pod), 'a Pod has the attempt that is stored').toBe(this.vm?.status?.attempt ?? 1);
    this.attempt = podAttempt(pod);
    this.podsCreated += 1;
    if (this.ranOnce) {
      this.createdAfterRun += 1;
    }
    this.#storePod(pod);
  }

  #storePod(pod: Pod): void {
    this.podsCreated += this.attempt === podAttempt(pod) ? 1 : 0;
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
    const hasEnded = terminated(pod) !== undefined;
    const { node, isGivenUp } = this.observed();
    const isContinued = this.successor !== undefined && awaitedOn(node)['vm-uid'] !== undefined;
    if (hasRun(pod) && !hasEnded && node !== undefined && !isGivenUp && !isContinued) {
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
      hasEnded || isContinued || pod.spec.nodeName === undefined || this.#hostIsLost(),
      'its machine has ended, or continues',
    ).toBe(true);
    pod.metadata.finalizers = pod.metadata.finalizers?.filter((name) => name !== POD_FINALIZER) ?? [];
    this.pod = undefined;
  }

  #hostIsLost(): boolean {
    const { silentSince = this.now, isGivenUp } = this.observed();
    const silent = this.now - silentSince >= 600_000;
    // A machine that has run may be running. Only people abandon it, by deleting its VM.
    const mayBeLost = this.vm?.metadata.deletionTimestamp !== undefined || !this.ranOnce;
    return isGivenUp || (silent && mayBeLost);
  }

  markPodDeleted(graceSeconds: number): void {
    if (this.pod !== undefined) {
      const { metadata } = this.pod;
      const { deletionGracePeriodSeconds: before = graceSeconds } = metadata;
      metadata.deletionTimestamp ??= new Date(this.now).toISOString();
      metadata.deletionGracePeriodSeconds = Math.min(before, graceSeconds);
    }
  }

  collect(): void {
    if (
      this.vm?.metadata.deletionTimestamp !== undefined &&
      (this.vm.metadata.finalizers ?? []).length === 0
    ) {
      this.vm = undefined;
    }
  }

  hostIsUp(): boolean {
    return this.node?.status?.conditions?.[0]?.status === 'True';
  }
}
