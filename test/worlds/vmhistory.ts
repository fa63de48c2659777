/** Histories of a VM: everybody else than the operator acts on the model of the VM. */
import { ADOPTS_ANNOTATION, AWAITED_ANNOTATION, MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import { awaitedOn, awaitedText } from '../../api/v1alpha1/machine.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { containerState, desiredOf, hasRun, terminated } from '../../operator/podbacked/pod.ts';

import { AWAITS_VM, VMModel } from './vmmodel.ts';
import { isForced } from '../../kube/objects.ts';

export const ACTIONS = [
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
  'forcePod',
  'podIsCollected',
  'agentAdopts',
  'agentLooks',
  'awaitedIsSettled',
  'hostIsGivenUp',
  'deleteVM',
  'hostSilent',
  'hostBack',
  'nodeDeleted',
  'outOfService',
  'minutePasses',
  'hostLostTimeoutPasses',
] as const;
export type Action = (typeof ACTIONS)[number];

/** The model of a VM with its host, people and the garbage collector. */
export class World extends VMModel {
  act(action: Action): void {
    const { pod } = this;
    const bound = pod?.spec.nodeName !== undefined && this.hostIsUp();
    const phase = pod?.status?.phase;
    switch (action) {
      case 'reconcile':
        return this.reconcile(Number.POSITIVE_INFINITY);
      case 'reconcileAndCrash':
        this.reconcile(1);
        this.resizeRefused = undefined;
        return;
      case 'schedule':
        if (pod !== undefined && pod.metadata.deletionTimestamp === undefined && this.hostIsUp()) {
          pod.spec.nodeName = 'host';
        }
        return;
      case 'agentStarts':
        if (
          bound &&
          pod !== undefined &&
          phase === 'Pending' &&
          pod.metadata.deletionTimestamp === undefined &&
          pod.metadata.annotations?.[ADOPTS_ANNOTATION] === undefined
        ) {
          this.ranOnce = true;
          this.hasMachine = true;
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
        if (bound && pod !== undefined && this.#isOrderedToEnd(pod)) {
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
        return this.markPodDeleted(30);
      case 'forcePod':
        return this.markPodDeleted(0);
      case 'deleteVM':
        if (this.vm !== undefined) {
          this.vm.metadata.deletionTimestamp ??= new Date(this.now).toISOString();
          this.collect();
        }
        return;
      default:
        return this.#actOnHost(action);
    }
  }

  /** The agent's rule: a deletion by force ends only a machine that never ran, unless the operator orders the end. */
  #isOrderedToEnd(pod: Pod): boolean {
    const isKept = isForced(pod) && hasRun(pod) && desiredOf(pod)?.deletion === undefined;
    return pod.metadata.deletionTimestamp !== undefined && terminated(pod) === undefined && !isKept;
  }

  #actOnMachine(action: Action): void {
    const { pod, node } = this;
    if (
      action === 'podIsCollected' &&
      pod !== undefined &&
      node === undefined &&
      pod.spec.nodeName !== undefined
    ) {
      const disruption = { type: 'DisruptionTarget', status: 'True' as const, reason: 'DeletionByPodGC' };
      const phase = terminated(pod) === undefined ? 'Failed' : (pod.status?.phase ?? 'Failed');
      pod.status = { ...pod.status, phase, conditions: [disruption] };
      this.markPodDeleted(0);
    } else if (
      action === 'agentAdopts' &&
      this.hostIsUp() &&
      pod !== undefined &&
      containerState(pod) === undefined
    ) {
      this.#adopt(pod);
    } else if (
      action === 'agentLooks' &&
      this.hostIsUp() &&
      pod === undefined &&
      awaitedOn(node)['vm-uid'] === undefined
    ) {
      const { metadata, status } = this.vm ?? {};
      const isWanted = metadata !== undefined && metadata.deletionTimestamp === undefined;
      this.disksLost += this.hasMachine && isWanted && status?.failure === undefined ? 1 : 0;
      this.hasMachine = false;
    } else if (action === 'awaitedIsSettled' && node !== undefined) {
      const isThere = pod !== undefined && containerState(pod) !== undefined && !isForced(pod);
      if (this.vm === undefined || isThere) {
        node.metadata.annotations = {};
        this.successor = undefined;
      }
    }
  }

  /** The agent's rule: a Pod that continues a machine gets this machine, or fails. */
  #adopt(pod: Pod): void {
    if (pod.metadata.annotations?.[ADOPTS_ANNOTATION] !== undefined) {
      if (this.hasMachine) {
        this.#setState('Running', { running: { startedAt: new Date(this.now).toISOString() } });
      } else {
        this.#end('DiskLost');
      }
    }
  }

  #actOnHost(action: Action): void {
    if (['podIsCollected', 'agentAdopts', 'agentLooks', 'awaitedIsSettled'].includes(action)) {
      this.#actOnMachine(action);
    } else if (action === 'minutePasses') {
      this.now += 60_000;
    } else if (action === 'hostLostTimeoutPasses') {
      this.now += 600_000;
    } else if (action === 'quotaChanges') {
      this.quota = this.quota === 4 ? 16 : 4;
    } else if (action === 'resizeVM') {
      this.#resizeVM();
    } else if (action === 'nodeDeleted') {
      this.missingSince ??= this.now;
      this.lastNode = this.node ?? this.lastNode;
      this.node = undefined;
    } else if (action === 'hostIsGivenUp') {
      this.isGivenUp = !this.hostIsUp();
    } else if (action === 'hostBack' && this.node === undefined) {
      this.#joinAgain();
    } else if (action === 'outOfService' && this.node !== undefined && !this.hostIsUp()) {
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

  /** The agent creates its Node again. The operator restores the list of awaited VMs, and adds VMs whose Pods were deleted by force. */
  #joinAgain(): void {
    this.missingSince = undefined;
    this.isGivenUp = false;
    const { lastNode, pod } = this;
    const isAwaited = awaitedOn(lastNode)['vm-uid'] !== undefined || (pod !== undefined && isForced(pod));
    const annotations = isAwaited ? { [AWAITED_ANNOTATION]: awaitedText(AWAITS_VM) ?? '' } : {};
    const status = { conditions: [{ type: 'Ready', status: 'True' as const }] };
    this.node = {
      ...(lastNode as Node),
      metadata: { ...(lastNode as Node).metadata, annotations },
      spec: {},
      status,
    };
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

export function worldAfter(actions: readonly Action[]): World {
  const world = new World();
  for (const action of actions) {
    world.act(action);
  }
  return world;
}

export function stabilize(world: World): void {
  for (let pass = 0; pass < 20; pass += 1) {
    world.act('reconcile');
    if (world.writesInLastPass === 0) {
      return;
    }
  }
}
