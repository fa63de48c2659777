/**
 * Reads the objects of a deployment (VMConfig, Image, ISO, credentials for registries) from the API server. The Pod of a VM is created
 * only once. If it were created from a cache that lags, the machine would never get the latest changes of these objects. Also finds VMs
 * whose Pod must be read from the API server.
 */
import { readRegistryCredentials, REGISTRIES_CONFIG_MAP } from '../../api/v1alpha1/registrycredentials.ts';
import { VM_FINALIZER } from '../../api/v1alpha1/names.ts';
import { CONFIG_MAPS } from '../../kube/core.ts';
import type { KubeObject, Resource } from '../../kube/objects.ts';
import type { SharedReads } from '../../kube/sharedreads.ts';
import { IMAGES, ISOS, VM_CONFIGS } from '../../api/v1alpha1/resources.ts';
import { TIMEOUT } from '../podbacked/pod.ts';
import { gatherFacts } from './facts.ts';
import type { Lookups, Observed } from './observe.ts';
import { isUnresolved, resolve } from './resolve.ts';
import { needsPod } from './steps.ts';

/** Returns true if, according to the caches, this reconcile will create the VM's Pod. */
export function isDeploying(observed: Observed): boolean {
  const { vm, nameTakenBy } = observed;
  return (
    vm.metadata.deletionTimestamp === undefined &&
    nameTakenBy === undefined &&
    needsPod(observed, gatherFacts(observed)) &&
    !isUnresolved(resolve(observed))
  );
}

/**
 * Returns true if this reconcile will create the VM's Pod, and no earlier request of the reconcile shows that the VM in the cache is
 * current. The patch that adds the finalizer of a new VM shows this, because it fails if the VM has changed.
 */
export function mayBeOutdated(observed: Observed): boolean {
  return observed.vm.metadata.finalizers?.includes(VM_FINALIZER) === true && isDeploying(observed);
}

/**
 * Returns true if, according to the caches, the time limit of the VM's deployment is over. The VM then fails permanently and loses its Pod.
 * After an outage of the API server, the cache can lack the report that the machine runs.
 */
export function isOverdue(observed: Observed): boolean {
  const { vm, pod } = observed;
  const isPending = pod !== undefined && vm.status?.firstRunningTime === undefined;
  return isPending && vm.status?.failure === undefined && gatherFacts(observed).failure?.reason === TIMEOUT;
}

interface Question {
  readonly resource: Resource<KubeObject>;
  readonly namespace: string;
  readonly name: string;
}

/**
 * Returns the observed state with the current VMConfig, Image and ISO of the VM from the API server. Each object takes one GET, and a
 * second one in the default namespace if the VM's namespace does not contain the object. The credentials take one GET if an image comes
 * from a registry. VMs that are deployed at the same time share their GETs.
 *
 * @throws ApiError when a request fails
 */
export async function readLive(reads: SharedReads, observed: Observed): Promise<Observed> {
  const answers = new Map<string, KubeObject | undefined>();
  for (;;) {
    const open: Question[] = [];
    const live = { ...observed, lookups: lookupsOf(answers, open, observed) };
    resolve(live);
    // Only the first missing object is read now, because its content can decide which other objects are needed.
    const [question] = open;
    if (question === undefined) {
      return live;
    }
    const { resource, namespace, name } = question;
    answers.set(keyOf(question), await reads.get(resource, { namespace, name }));
  }
}

/**
 * Returns lookups that find objects in the earlier responses of the API server. A lookup of an object that was not read yet adds this
 * object to `open`, and treats it as missing for now.
 */
function lookupsOf(
  answers: ReadonlyMap<string, KubeObject | undefined>,
  open: Question[],
  { vm, config }: Observed,
): Lookups {
  const ask = <T extends KubeObject>(
    resource: Resource<T>,
    namespace: string,
    name: string,
  ): T | undefined => {
    const question = { resource, namespace, name };
    if (!answers.has(keyOf(question))) {
      open.push(question);
    }
    return answers.get(keyOf(question)) as T | undefined;
  };
  const { namespace = '' } = vm.metadata;
  const fallback = config.namespaces.default;
  return {
    vmConfig: (name, from) => ask(VM_CONFIGS, from, name),
    image: (name) => ask(IMAGES, namespace, name) ?? ask(IMAGES, fallback, name),
    iso: (name) => ask(ISOS, namespace, name) ?? ask(ISOS, fallback, name),
    credentials: () => readRegistryCredentials(ask(CONFIG_MAPS, namespace, REGISTRIES_CONFIG_MAP)?.data),
  };
}

function keyOf({ resource, namespace, name }: Question): string {
  return `${resource.plural}/${namespace}/${name}`;
}
