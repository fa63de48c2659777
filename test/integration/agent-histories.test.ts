/**
 * Histories of a host with two drivers. VMs, their emulators and the agent come and go in any order, and a model of the operator ends the
 * emulators of VMs that do not run.
 */
import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import { DESIRED_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { pause } from '../../base/time.ts';
import { waitFor } from '../../hack/wait.ts';
import type { Pod } from '../../kube/core.ts';
import { emulatorDocument, emulatorPodFor } from '../fixtures/emulators.ts';
import { DESIRED, machineFor, podFor } from '../worlds/agenthost.ts';
import { ModelHost } from '../worlds/modelhost.ts';

const HISTORIES = 200;
const LENGTH = 40;
/** Number of histories that run at the same time. Most of their time is waiting. */
const AT_ONCE = 40;
/** Most Pods that are on the host at the same time. They are more than its slots. */
const MOST_PODS = 8;
const NAMESPACE = 'platform-ci';
const HOST = { name: 'host' };
const SSH = { purpose: 'ssh', protocol: 'TCP', guestPort: 22 } as const;
/** Wait of a running history before its next step. Some steps then meet others under way. */
const STEP_MILLISECONDS = 5;

const name = fc.integer({ min: 0, max: 4 });
const step = fc.oneof(
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('vm' as const), name }) },
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constant('emulator' as const), name, isOpen: fc.boolean() }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('reconcile' as const) }) },
  fc.record({
    kind: fc.constant('power' as const),
    name,
    power: fc.constantFrom('Running' as const, 'Stopped' as const, 'Suspended' as const),
  }),
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('delete' as const), name }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('deleteEmulator' as const), name }) },
  fc.record({ kind: fc.constant('crash' as const), name, isEmulator: fc.boolean() }),
  fc.record({ kind: fc.constant('program' as const), port: fc.integer({ min: 5600, max: 5605 }) }),
  fc.record({ kind: fc.constant('restart' as const) }),
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

class Model {
  readonly host = new ModelHost();
  #made = 0;
  readonly #powers = new Map<string, Desired['power']>();

  find(name: string): Pod | undefined {
    return this.host.api.pods.find(({ metadata }) => metadata.name === name);
  }

  async act(one: Step): Promise<void> {
    const { api } = this.host;
    switch (one.kind) {
      case 'vm':
        return this.#createVM(`vm-${one.name}`);
      case 'emulator':
        return this.#createEmulator(`vm-${one.name}`, one.isOpen);
      case 'power':
        return this.#setPower(`vm-${one.name}`, one.power);
      case 'delete':
      case 'deleteEmulator': {
        const pod = this.find(`vm-${one.name}${one.kind === 'delete' ? '' : '.emulator'}`);
        return pod && api.delete(pod);
      }
      case 'crash':
        return this.#crash(`vm-${one.name}`, one.isEmulator);
      case 'program':
        this.host.foreign.clear();
        this.host.foreign.add(one.port);
        return undefined;
      case 'restart':
        await this.host.stop();
        return await this.host.start();
      case 'reconcile':
      default:
        await this.settle();
        this.reconcile();
        await this.settle();
        return this.#expectNoEmulatorAlone();
    }
  }

  /** Schedules a VM onto the host. The scheduler knows only the Pods, and a Pod may name its host itself. */
  #createVM(name: string): void {
    const { api } = this.host;
    if (this.find(name) === undefined && api.pods.length < MOST_PODS) {
      this.#powers.delete(name);
      const machine = { ...machineFor(NAMESPACE, name), automaticPorts: [SSH] };
      api.create(podFor(HOST, machine), this.#uid(name));
    }
  }

  #createEmulator(name: string, isOpen: boolean): void {
    const { api } = this.host;
    if (
      this.find(`${name}.emulator`) === undefined &&
      this.find(name) !== undefined &&
      api.pods.length < MOST_PODS
    ) {
      const { vm } = machineFor(NAMESPACE, name);
      const document = emulatorDocument(vm, name, { exposure: isOpen ? 'Host' : 'PairedVM' });
      api.create(emulatorPodFor(HOST, document), this.#uid(`${name}-emulator`));
    }
  }

  #uid(name: string): string {
    this.#made += 1;
    return `${name}-${this.#made}`;
  }

  #setPower(name: string, power: Desired['power']): void {
    const pod = this.find(name);
    if (pod !== undefined) {
      this.#powers.set(name, power);
      this.host.api.annotate(pod, { [DESIRED_ANNOTATION]: JSON.stringify({ ...DESIRED, power }) });
    }
  }

  #crash(name: string, isEmulator: boolean): void {
    const driver = isEmulator ? this.host.emulators : this.host.vms;
    const { uid = '' } = this.find(isEmulator ? `${name}.emulator` : name)?.metadata ?? {};
    if (driver.machines.get(uid)?.kind === 'running') {
      driver.end(uid, 'Crashed', 'the last words');
    }
  }

  /** The operator deletes Pods of emulators whose VM does not run, and Pods that have failed. */
  reconcile(): void {
    for (const pod of this.host.api.pods) {
      const { name } = pod.metadata;
      const isEmulator = name.endsWith('.emulator');
      const isFailed = pod.status?.phase === 'Failed';
      if (isFailed || (isEmulator && !this.#runs(name.replace('.emulator', '')))) {
        this.host.api.delete(pod);
      }
    }
  }

  #runs(vm: string): boolean {
    const pod = this.find(vm);
    const isWanted = pod !== undefined && pod.metadata.deletionTimestamp === undefined;
    return isWanted && this.host.vms.machines.get(pod.metadata.uid ?? '')?.kind === 'running';
  }

  /** Waits until every Pod of the host is as it should be. */
  async settle(): Promise<void> {
    await waitFor('the host to be at rest', () => {
      const restless = this.host.api.pods.filter((pod) => !this.#isAtRest(pod));
      if (restless.length > 0) {
        throw new Error(
          JSON.stringify(
            restless.map(({ metadata, status }) => [metadata.name, metadata.deletionTimestamp, status]),
          ),
        );
      }
      return true;
    });
  }

  #isAtRest({ metadata, status }: Pod): boolean {
    const { name, uid = '', deletionTimestamp } = metadata;
    if (deletionTimestamp !== undefined) {
      return false;
    }
    const { vms, emulators } = this.host;
    const state = (vms.machines.get(uid) ?? emulators.machines.get(uid))?.kind;
    if (status?.phase === 'Failed') {
      return state !== 'running';
    }
    if (name.endsWith('.emulator')) {
      return status?.phase === 'Running' || isWaiting(status) || !this.#runs(name.replace('.emulator', ''));
    }
    if (isWaiting(status)) {
      return true;
    }
    const wanted = this.#powers.get(name) ?? 'Running';
    return wanted === 'Running' ? isRunning(status) : state !== 'running' && state !== undefined;
  }

  #expectNoEmulatorAlone(): void {
    const { api, emulators } = this.host;
    for (const uid of this.host.running(emulators)) {
      const pod = api.pods.find(({ metadata }) => metadata.uid === uid);
      expect(this.#runs(pod?.metadata.name.replace('.emulator', '') ?? ''), `the VM of ${uid} runs`).toBe(
        true,
      );
    }
  }

  /** Deletes everything and waits until it is gone. */
  async end(): Promise<void> {
    this.host.foreign.clear();
    for (const pod of this.host.api.pods) {
      this.host.api.delete(pod);
    }
    await waitFor('nothing to be left', () => {
      const left = [...this.host.api.pods.map(({ metadata }) => metadata.name), ...this.host.left];
      if (left.length > 0) {
        throw new Error(left.join(', '));
      }
      return true;
    });
  }
}

function isRunning(status: Pod['status']): boolean {
  return status?.phase === 'Running' && status.containerStatuses?.[0]?.state?.running !== undefined;
}

/** Whether the Pod waits for something that only another step can change: a port. */
function isWaiting(status: Pod['status']): boolean {
  const ready = status?.conditions?.find(({ type }) => type === 'Ready');
  return ready?.message?.startsWith('No TCP port ') === true;
}

/** Lives one history and checks its promises. @throws Error with the history and the seed of all. */
async function expectToHold(history: readonly Step[], seed: number): Promise<void> {
  const model = new Model();
  await model.host.start();
  try {
    for (const one of history) {
      await model.act(one);
      await pause(STEP_MILLISECONDS);
    }
    await model.end();
    expect(model.host.faults).toEqual([]);
  } catch (error) {
    throw new Error(`HISTORIES_SEED=${seed}: ${JSON.stringify(history)}`, { cause: error });
  } finally {
    await model.host.stop();
    model.host.remove();
  }
}

test('over any history, the host stays within its slots, no port has two holders, no emulator stays without its VM, and nothing is left', {
  timeout: 180_000,
}, async ({ task }) => {
  const seed = Number(process.env['HISTORIES_SEED'] ?? Date.now() % 1_000_000);
  const histories = fc.sample(fc.array(step, { minLength: 5, maxLength: LENGTH, size: 'max' }), {
    numRuns: HISTORIES,
    seed,
  });
  const waiting = [...histories];
  const worker = async (): Promise<void> => {
    for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
      await expectToHold(next, seed);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  const lengths = histories.map(({ length }) => length);
  (task.meta.histories ??= []).push({
    test: task.name,
    histories: HISTORIES,
    meanLength: lengths.reduce((sum, length) => sum + length, 0) / HISTORIES,
    longest: Math.max(...lengths),
  });
});
