/**
 * Histories of a host with two drivers. VMs, their emulators and the agent come and go in any order. Pods of VMs are deleted by force, and
 * their machines get other Pods. A model of the operator ends the emulators of VMs that do not run.
 */
import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import type { Desired, Machine } from '../../api/v1alpha1/machine.ts';
import { ADOPTS_ANNOTATION, DESIRED_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { pause } from '../../base/time.ts';
import { waitFor } from '../../hack/wait.ts';
import type { Pod } from '../../kube/core.ts';
import { emulatorDocument, emulatorPodFor } from '../fixtures/emulators.ts';
import { DESIRED, machineFor, podFor } from '../worlds/agenthost.ts';
import { ModelHost } from '../worlds/modelhost.ts';

const HISTORIES = 500;
const LENGTH = 40;
/** Number of histories that run at the same time. Most of their time is waiting. */
const AT_ONCE = 40;
/** Most Pods that are on the host at the same time. They are more than its slots. */
const MOST_PODS = 8;
const NAMESPACE = 'platform-ci';
const HOST = { name: 'host' };
/** Host ports that the VMs reserve. There are fewer than VMs, so a VM can want the port of another one. */
const RESERVED = [5700, 5701, 5702] as const;
const SSH = { purpose: 'ssh', protocol: 'TCP', guestPort: 22 } as const;
/** Wait of a running history before its next step. Some steps then meet others under way. */
const STEP_MILLISECONDS = 5;

/** Number of VMs. */
const VMS = 5;
const name = fc.integer({ min: 0, max: VMS - 1 });
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
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('force' as const), name }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('continue' as const), name }) },
  fc.record({ kind: fc.constant('crash' as const), name, isEmulator: fc.boolean() }),
  fc.record({ kind: fc.constant('program' as const), port: fc.integer({ min: 5600, max: 5605 }) }),
  fc.record({ kind: fc.constant('restart' as const) }),
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

class Model {
  readonly host = new ModelHost();
  #made = 0;
  readonly #powers = new Map<string, Desired['powerState']>();
  /** Uids of the machines whose Pod was deleted by force and that have no other Pod yet, by the names of their VMs. */
  readonly #between = new Map<string, string>();
  /** Uids of machines, by the uids of the Pods that continue them. */
  readonly #continued = new Map<string, string>();

  find(name: string): Pod | undefined {
    return this.host.api.pods.find(({ metadata }) => metadata.name === name);
  }

  async act(one: Step): Promise<void> {
    switch (one.kind) {
      case 'vm':
        return this.#createVM(`vm-${one.name}`);
      case 'emulator':
        return this.#createEmulator(`vm-${one.name}`, one.isOpen);
      case 'power':
        return this.#setPower(`vm-${one.name}`, one.power);
      case 'force':
        return this.#force(`vm-${one.name}`);
      case 'continue':
        return this.#continue(`vm-${one.name}`);
      case 'delete':
        this.#forget(`vm-${one.name}`);
        return this.#delete(`vm-${one.name}`);
      case 'deleteEmulator':
        return this.#delete(`vm-${one.name}.emulator`);
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
        await this.stabilize();
        this.reconcile();
        await this.stabilize();
        return this.#expectNoEmulatorAlone();
    }
  }

  #delete(name: string): void {
    const pod = this.find(name);
    if (pod !== undefined) {
      this.host.api.delete(pod);
    }
  }

  /** Schedules a VM onto the host. The scheduler knows only the Pods, and a Pod may name its host itself. */
  #createVM(name: string): void {
    const { api } = this.host;
    if (this.find(name) === undefined && !this.#between.has(name) && api.pods.length < MOST_PODS) {
      this.#powers.delete(name);
      api.create(podFor(HOST, machineOf(name)), this.#uid(name));
    }
  }

  /** Deletes the Pod of a running VM by force. The operator has listed the VM on the Node before it lets the Pod go. */
  #force(name: string): void {
    const { api } = this.host;
    const pod = this.find(name);
    if (pod === undefined || pod.metadata.deletionTimestamp !== undefined || !isRunning(pod.status)) {
      return;
    }
    this.host.setAwaited(machineOf(name).vm.uid, true);
    api.delete(pod, 0);
    api.release(pod);
    this.#between.set(name, this.#machineUid(pod));
  }

  /** The operator creates the Pod that continues the machine of a VM. */
  #continue(name: string): void {
    const machine = this.#between.get(name);
    if (machine === undefined) {
      return;
    }
    const { metadata, ...rest } = podFor(HOST, machineOf(name), {
      ...DESIRED,
      powerState: this.#power(name),
    });
    const annotations = { ...metadata.annotations, [ADOPTS_ANNOTATION]: machine };
    const { uid = '' } = this.host.api.create(
      { ...rest, metadata: { ...metadata, annotations } },
      this.#uid(name),
    ).metadata;
    this.#between.delete(name);
    this.#continued.set(uid, machine);
  }

  /** The VM is deleted. No Pod continues its machine any more. */
  #forget(name: string): void {
    this.#between.delete(name);
    this.host.setAwaited(machineOf(name).vm.uid, false);
  }

  /** Returns the uid of the machine of the Pod. It is the uid of the first Pod of the machine. */
  #machineUid({ metadata: { uid = '' } }: Pod): string {
    return this.#continued.get(uid) ?? uid;
  }

  #power(name: string): Desired['powerState'] {
    return this.#powers.get(name) ?? 'Running';
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

  #setPower(name: string, power: Desired['powerState']): void {
    const pod = this.find(name);
    if (pod !== undefined) {
      this.#powers.set(name, power);
      this.host.api.annotate(pod, {
        [DESIRED_ANNOTATION]: JSON.stringify({ ...DESIRED, powerState: power }),
      });
    }
  }

  #crash(name: string, isEmulator: boolean): void {
    const driver = isEmulator ? this.host.emulators : this.host.vms;
    const pod = this.find(isEmulator ? `${name}.emulator` : name);
    const uid = pod === undefined ? '' : this.#machineUid(pod);
    if (driver.machines.get(uid)?.kind === 'running') {
      driver.end(uid, 'Crashed', 'the last words');
    }
  }

  /** The operator deletes Pods of emulators whose VM does not run, and Pods that have failed. */
  reconcile(): void {
    for (const pod of this.host.api.pods) {
      const { name, uid = '' } = pod.metadata;
      if (this.#continued.has(uid)) {
        expect(pod.status?.reason, `the machine that ${name} continues is there`).not.toBe('DiskLost');
        expect(this.host.vms.machines.has(uid), `${name} got no new machine`).toBe(false);
        this.host.setAwaited(machineOf(name).vm.uid, false);
      }
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
    const uid = isWanted ? this.#machineUid(pod) : this.#between.get(vm);
    return uid !== undefined && this.host.vms.machines.get(uid)?.kind === 'running';
  }

  /** Waits until every Pod of the host is as it should be. */
  async stabilize(): Promise<void> {
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

  #isAtRest(pod: Pod): boolean {
    const { metadata, status } = pod;
    const { name, deletionTimestamp } = metadata;
    const uid = this.#machineUid(pod);
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
    return this.#power(name) === 'Running' ? isRunning(status) : state !== 'running' && state !== undefined;
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
    for (let index = 0; index < VMS; index += 1) {
      this.#forget(`vm-${index}`);
    }
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

function machineOf(name: string): Machine {
  const hostPort = RESERVED[Number(name.at(-1)) % RESERVED.length] as number;
  const ports = [{ hostPort, guestPort: 80, protocol: 'TCP' as const }];
  return { ...machineFor(NAMESPACE, name), automaticPorts: [SSH], ports };
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

test('over any history, the host stays within its slots, no port has two holders, a machine outlives its Pod, no emulator stays without its VM, and nothing is left', {
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
