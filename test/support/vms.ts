/** VMs of one namespace, as a test makes and watches them. */
import type { VM, VMSpec } from '../../api/v1alpha1/vm.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { VMS } from '../../operator/objects/resources.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { isGone, waitForObject } from './objects.ts';
import { waitFor, type WaitOptions } from '../../hack/wait.ts';

type Condition = NonNullable<NonNullable<VM['status']>['conditions']>[number];

/** A reference that nothing pulls: the hosts are simulated, or the test itself is the agent. */
export const IMAGE = 'registry.example/guest:1';

export class VMs {
  readonly #cluster: Cluster;
  readonly namespace: string;

  constructor(cluster: Cluster, namespace = 'platform-default') {
    this.#cluster = cluster;
    this.namespace = namespace;
  }

  create(name: string, spec: Partial<VMSpec> = {}): Promise<VM> {
    const named = spec.image ?? spec.iso ?? spec.configRef;
    return this.#cluster.client().create(VMS, {
      metadata: { name, namespace: this.namespace },
      spec: named === undefined ? { image: IMAGE, ...spec } : spec,
    });
  }

  createMany(names: readonly string[], spec: Partial<VMSpec> = {}): Promise<VM[]> {
    return Promise.all(names.map((name) => this.create(name, spec)));
  }

  patch(name: string, spec: object): Promise<VM> {
    return this.#cluster.client().mergePatch(VMS, this.#ref(name), { spec });
  }

  /** As `kubectl delete --wait=false` does. */
  delete(name: string): Promise<void> {
    return this.#cluster.client().delete(VMS, this.#ref(name));
  }

  get(name: string): Promise<VM> {
    return this.#cluster.client().get(VMS, this.#ref(name));
  }

  async list(): Promise<VM[]> {
    return (await this.#cluster.client().list(VMS, { namespace: this.namespace })).items;
  }

  pod(name: string): Promise<Pod> {
    return this.#cluster.client().get(PODS, this.#ref(name));
  }

  deletePod(name: string): Promise<void> {
    return this.#cluster.client().delete(PODS, this.#ref(name));
  }

  async names(phase: string): Promise<string[]> {
    return (await this.list()).filter((vm) => vm.status?.phase === phase).map((vm) => vm.metadata.name);
  }

  /** Waits for a phase and, when given, the reason of the recorded failure. */
  waitForPhase(name: string, phase: string, failure?: string, options?: WaitOptions): Promise<VM> {
    const what = `VM ${name} to be ${phase}${failure === undefined ? '' : `/${failure}`}`;
    return this.waitForVM(
      name,
      what,
      ({ status }) =>
        status?.phase === phase && (failure === undefined || status.failure?.reason === failure),
      options,
    );
  }

  async waitForCondition(
    name: string,
    type: string,
    wanted: Partial<Condition>,
    options?: WaitOptions,
  ): Promise<Condition> {
    const what = `VM ${name} to have ${type} ${JSON.stringify(wanted)}`;
    const fields = Object.entries(wanted);
    const vm = await this.waitForVM(
      name,
      what,
      (candidate) => {
        const condition = conditionOf(candidate, type);
        return fields.every(([field, value]) => condition?.[field as keyof Condition] === value);
      },
      options,
    );
    return conditionOf(vm, type) as Condition;
  }

  waitForVM(name: string, what: string, matches: (vm: VM) => boolean, options?: WaitOptions): Promise<VM> {
    return waitForObject(what, () => this.get(name), matches, options);
  }

  /** Neither the VM nor its Pod is there any more. */
  async waitUntilGone(name: string, options?: WaitOptions): Promise<void> {
    await waitFor(
      `VM ${name} and its Pod to be gone`,
      async () => (await isGone(() => this.get(name))) && (await isGone(() => this.pod(name))),
      options,
    );
  }

  async waitUntilPodGone(name: string): Promise<void> {
    await waitFor(`Pod ${name} to be gone`, () => isGone(() => this.pod(name)));
  }

  #ref(name: string): { namespace: string; name: string } {
    return { namespace: this.namespace, name };
  }
}

export function conditionOf(vm: VM, type: string): Condition | undefined {
  return vm.status?.conditions?.find((condition) => condition.type === type);
}

/** `prefix-0`, `prefix-1`, … */
export function numbered(prefix: string, count: number): string[] {
  return Array.from({ length: count }, (_, index) => `${prefix}-${index}`);
}
