/**
 * The floor: the operator's writes without an operator. For each VM it writes a finalizer, a Pod and two statuses, with the bodies that the
 * operator wrote for another VM. It uses the operator's identity and transport, but no cache, queue or second look. It is a process of its
 * own with the same settings of V8, so that its CPU time and memory are measured like the operator's:
 *
 *     node floor.js KUBECONFIG TEMPLATE.json NAMESPACE
 */
import '../../base/heap.ts';
import { readFileSync } from 'node:fs';
import { pino } from 'pino';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { KubeClient } from '../../kube/client.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { Informer } from '../../kube/informer.ts';
import { createMetrics } from '../../kube/metrics.ts';
import type { KubeObject, Resource } from '../../kube/objects.ts';
import { Transport } from '../../kube/transport.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';

/** A running VM and its Pod, as the operator wrote them. */
export interface Template {
  vm: VM;
  pod: Pod;
}

class Floor {
  readonly #client: KubeClient;
  readonly #namespace: string;
  readonly #template: Template;
  readonly #seen = new Set<string>();
  readonly #running = new Set<string>();

  constructor(client: KubeClient, template: Template, namespace: string) {
    this.#client = client;
    this.#template = template;
    this.#namespace = namespace;
  }

  async run(): Promise<void> {
    await this.#watch(VMS, (vm) => this.#deploy(vm));
    await this.#watch(PODS, (pod) => this.#finish(pod));
    process.stdout.write('ready\n');
  }

  async #watch<T extends KubeObject>(type: Resource<T>, act: (object: T) => Promise<void>): Promise<void> {
    const logger = pino({ level: 'silent' });
    const informer = new Informer<T>(this.#client, type, { namespace: this.#namespace, logger });
    informer.cache.onChange(({ object }) => {
      act(object).catch(fail);
    });
    informer.start(new AbortController().signal);
    await informer.synced;
  }

  async #deploy({ metadata }: Readonly<VM>): Promise<void> {
    if (this.#seen.has(metadata.name)) {
      return;
    }
    this.#seen.add(metadata.name);
    const { finalizers } = this.#template.vm.metadata;
    await this.#client.mergePatch(VMS, metadata, { metadata: { finalizers, uid: metadata.uid } });
    await this.#client.create(PODS, this.#podFor(metadata.name, metadata.uid ?? ''));
    const { firstRunningTime: _time, nodeName: _node, ...status } = this.#template.vm.status ?? {};
    await this.#writeStatus(metadata.name, { ...status, phase: 'Pending' });
  }

  async #finish({ metadata, spec, status }: Readonly<Pod>): Promise<void> {
    if (status?.phase !== 'Running' || this.#running.has(metadata.name)) {
      return;
    }
    this.#running.add(metadata.name);
    await this.#writeStatus(metadata.name, { ...this.#template.vm.status, nodeName: spec.nodeName });
  }

  async #writeStatus(name: string, status: object): Promise<void> {
    const ref = { namespace: this.#namespace, name };
    await this.#client.mergePatch(VMS, ref, { status }, { subresource: 'status' });
  }

  #podFor(name: string, uid: string): Pod {
    const { vm, pod } = this.#template;
    const { labels, annotations, finalizers, ownerReferences } = pod.metadata;
    const { nodeName: _node, ...spec } = pod.spec;
    const text = JSON.stringify({
      metadata: { name, namespace: this.#namespace, labels, annotations, finalizers, ownerReferences },
      spec,
    });
    return JSON.parse(text.replaceAll(vm.metadata.uid ?? '', uid).replaceAll(vm.metadata.name, name)) as Pod;
  }
}

function fail(error: unknown): void {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}

if (import.meta.main) {
  const [kubeconfigPath, template = '', namespace = ''] = process.argv.slice(2);
  const connection = await loadConnection({ kubeconfigPath });
  const client = new KubeClient(new Transport(connection, { metrics: createMetrics() }));
  await new Floor(client, JSON.parse(readFileSync(template, 'utf8')) as Template, namespace).run();
}
