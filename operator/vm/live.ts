/** Reads the objects that a VM is made from at the server itself: a VM is made once, and an edit that a lagging cache lacks would be lost. */
import type { KubeClient } from '../../kube/client.ts';
import { unlessMissing } from '../../kube/errors.ts';
import type { KubeObject, Resource } from '../../kube/objects.ts';
import { IMAGES, ISOS, VM_CONFIGS } from '../objects/resources.ts';
import { gatherFacts } from './facts.ts';
import type { Lookups, Observed } from './observe.ts';
import { isUnresolved, resolve } from './resolve.ts';
import { needsPod } from './steps/deploy.ts';

/** Whether this look is to make the VM's Pod, as far as the caches know. */
export function isDeploying(observed: Observed): boolean {
  const { vm, nameTakenBy } = observed;
  return (
    vm.metadata.deletionTimestamp === undefined &&
    nameTakenBy === undefined &&
    needsPod(observed, gatherFacts(observed)) &&
    !isUnresolved(resolve(observed))
  );
}

interface Question {
  readonly resource: Resource<KubeObject>;
  readonly namespace: string;
  readonly name: string;
}

/**
 * The same look, with the VMConfig, Image and ISO that the VM names as the server has them now: a GET for each, and one more
 * where the default namespace has it. A VM of a plain reference needs none.
 *
 * @throws ApiError
 */
export async function readLive(client: KubeClient, observed: Observed): Promise<Observed> {
  const answers = new Map<string, KubeObject | undefined>();
  for (;;) {
    const open: Question[] = [];
    const live = { ...observed, lookups: lookupsOf(answers, open, observed) };
    resolve(live);
    // The others may depend on its answer.
    const [question] = open;
    if (question === undefined) {
      return live;
    }
    const { resource, namespace, name } = question;
    answers.set(keyOf(question), await unlessMissing(client.get(resource, { namespace, name })));
  }
}

/** Answers questions that were asked already; the others stay open, as if their objects did not exist. */
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
  };
}

function keyOf({ resource, namespace, name }: Question): string {
  return `${resource.plural}/${namespace}/${name}`;
}
