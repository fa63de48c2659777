/** Names the VMs because of which a power action was refused. The status of a Server only has their number, because more people read it. */
import { hasEnded } from '../../api/http/host.ts';
import { EMULATOR_UID_LABEL, GROUP, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type ContainerStatus, type Pod, PODS } from '../../kube/core.ts';
import type { Authorizer, User } from '../../kube/serving/authorization.ts';
import type { PowerCaller } from './callers.ts';

/** Largest number of VMs that an answer names. */
const NAMES = 10;
/** Reasons of a container whose machine keeps its place on the host, but does not run. */
const NOT_RUNNING: ReadonlySet<string> = new Set(['Stopped', 'Suspended']);

export class Occupants {
  readonly #client: KubeClient;
  readonly #authorizer: Authorizer;

  /** `client` has the identity of the HTTP API, which may list all Pods. */
  constructor(client: KubeClient, authorizer: Authorizer) {
    this.#client = client;
    this.#authorizer = authorizer;
  }

  /**
   * Returns the names of the VMs on the host that the caller may list, and the number of the other machines, as the end of a sentence. The
   * result is empty if the caller may list none. A user with a password has no rights to VMs.
   */
  async describe({ user }: PowerCaller, nodeName: string): Promise<string> {
    if (user === undefined) {
      return '';
    }
    const { items } = await this.#client.list(PODS, { fieldSelector: `spec.nodeName=${nodeName}` });
    const machines = items.filter(isRunningMachine);
    const vms = machines.filter(({ metadata }) => metadata.labels?.[VM_UID_LABEL] !== undefined);
    const visible = await this.#visibleNamespaces(user, vms);
    const names = vms
      .filter(({ metadata: { namespace = '' } }) => visible.has(namespace))
      .map(({ metadata: { namespace, name } }) => `${namespace}/${name}`)
      .toSorted()
      .slice(0, NAMES);
    const others = machines.length - names.length;
    return names.length === 0 ? '' : `: ${names.join(', ')}${others === 0 ? '' : ` and ${others} more`}`;
  }

  /** Returns the namespaces of the Pods in which the user may list VMs. */
  async #visibleNamespaces(user: User, pods: readonly Pod[]): Promise<ReadonlySet<string>> {
    const namespaces = [...new Set(pods.map(({ metadata: { namespace = '' } }) => namespace))];
    const right = { verb: 'list', group: GROUP, resource: VMS.plural };
    const answers = await Promise.all(
      namespaces.map(
        async (namespace) =>
          await this.#authorizer.authorize(user, { resourceAttributes: { ...right, namespace } }),
      ),
    );
    return new Set(namespaces.filter((_namespace, index) => answers[index]));
  }
}

function isRunningMachine(pod: Pod): boolean {
  const { labels = {} } = pod.metadata;
  const isMachine = VM_UID_LABEL in labels || EMULATOR_UID_LABEL in labels;
  const { containerStatuses = [] } = pod.status ?? {};
  return isMachine && !hasEnded(pod) && !containerStatuses.some(isOff);
}

function isOff({ state }: ContainerStatus): boolean {
  return NOT_RUNNING.has(state?.waiting?.reason ?? '');
}
