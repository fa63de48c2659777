/** A cluster with an operator, simulated hosts, a stub of GitHub, and the runners for GitHub in a process of their own. */
import { GITHUB_SECRET_TYPE } from '../../api/v1alpha1/names.ts';
import { RUNNER_SETS, VM_CONFIGS, VMS } from '../../api/v1alpha1/resources.ts';
import type { RunnerSet, RunnerSetSpec } from '../../api/v1alpha1/runnerset.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { conditionIn } from '../../kube/conditions.ts';
import { ROLE_BINDINGS, SECRETS } from '../../kube/core.ts';
import { type KubeObject, namespaced } from '../../kube/objects.ts';
import { waitForObject } from '../fixtures/objects.ts';
import { IMAGE } from '../fixtures/vms.ts';
import { GitHubStub } from '../support/github/stub.ts';

const RBAC = 'rbac.authorization.k8s.io';
const ROLES = namespaced<KubeObject & { rules: object[] }>(`${RBAC}/v1`, 'Role', 'roles');
const ACCOUNT = [{ kind: 'ServiceAccount', name: 'berth-runners', namespace: 'berth-system' }];
export const NAMESPACE = 'platform-default';
/** Token in the Secret `berth-github`. */
export const TOKEN = 'ghp_planted0123456789planted';

export class RunnersWorld implements AsyncDisposable {
  readonly cluster: Cluster;
  readonly stub: GitHubStub;
  readonly #stack: AsyncDisposableStack;
  runners: OperatorProcess | undefined;

  private constructor(cluster: Cluster, stub: GitHubStub, stack: AsyncDisposableStack) {
    this.cluster = cluster;
    this.stub = stub;
    this.#stack = stack;
  }

  /** `hosts` is the number of simulated hosts with four slots each. */
  static async start(name: string, hosts: number): Promise<RunnersWorld> {
    await using stack = new AsyncDisposableStack();
    const cluster = await startCluster({ name, hosts, operator: true });
    stack.defer(async () => await cluster.stop());
    return await RunnersWorld.inside(cluster, stack.move());
  }

  /** Adds a stub of GitHub to a cluster with an operator. `parts` end with this world. */
  static async inside(cluster: Cluster, parts = new AsyncDisposableStack()): Promise<RunnersWorld> {
    await using stack = parts;
    const stub = stack.use(await GitHubStub.start());
    const world = new RunnersWorld(cluster, stub, stack.move());
    await world.#prepare();
    return world;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.runners?.stop();
    await this.#stack.disposeAsync();
  }

  async #prepare(): Promise<void> {
    const client = this.cluster.client();
    const namespace = NAMESPACE;
    await client.create(VM_CONFIGS, {
      metadata: { namespace, name: 'runner' },
      spec: { image: IMAGE, architecture: 'arm64' },
    });
    await this.createSecret('berth-github', { token: TOKEN, host: this.stub.host });
    await this.createSecret('authority', { 'ca.crt': this.stub.authority });
    const rules = [
      {
        apiGroups: [''],
        resources: ['secrets'],
        verbs: ['get'],
        resourceNames: ['berth-github', 'authority', 'wrong', 'other', 'inside'],
      },
    ];
    await client.create(ROLES, { metadata: { namespace, name: 'berth-runners' }, rules });
    await client.create(ROLE_BINDINGS, {
      metadata: { namespace, name: 'berth-runners-secrets' },
      roleRef: { apiGroup: RBAC, kind: 'Role', name: 'berth-runners' },
      subjects: ACCOUNT,
    });
    await client.create(ROLE_BINDINGS, {
      metadata: { namespace, name: 'berth-runners' },
      roleRef: { apiGroup: RBAC, kind: 'ClusterRole', name: 'berth-runners' },
      subjects: ACCOUNT,
    });
  }

  async createSecret(name: string, stringData: Record<string, string>): Promise<void> {
    const metadata = { namespace: NAMESPACE, name };
    await this.cluster.client().create(SECRETS, { metadata, type: GITHUB_SECRET_TYPE, stringData });
  }

  async startRunners(defaultNamespace?: string): Promise<void> {
    this.runners = await this.cluster.startRunners({
      namespaces: [NAMESPACE],
      privateServers: [this.stub.host],
      defaultNamespace,
    });
  }

  async createSet(
    name: string,
    { org = 'acme', ...spec }: Partial<Omit<RunnerSetSpec, 'github'>> & { org?: string } = {},
    github: Partial<RunnerSetSpec['github']> = {},
  ): Promise<RunnerSet> {
    return await this.cluster.client().create(RUNNER_SETS, {
      metadata: { namespace: NAMESPACE, name },
      spec: {
        github: {
          url: this.stub.url(org),
          credentialSecret: 'berth-github',
          caSecret: 'authority',
          ...github,
        },
        max: 4,
        configRef: { name: 'runner' },
        ...spec,
      },
    });
  }

  async waitForSet(name: string, what: string, test: (set: RunnerSet) => boolean): Promise<RunnerSet> {
    const get = () => this.cluster.client().get(RUNNER_SETS, { namespace: NAMESPACE, name });
    return await waitForObject(`RunnerSet ${name} to be ${what}`, get, test);
  }

  /** Waits for the reason of a condition. */
  async waitForReason(name: string, type: string, reason: string): Promise<RunnerSet> {
    return await this.waitForSet(
      name,
      `${type}/${reason}`,
      ({ status }) => conditionIn(status, type)?.reason === reason,
    );
  }

  /** Returns the VMs of a set. */
  async vms(set: string): Promise<VM[]> {
    const { items } = await this.cluster.client().list(VMS, { namespace: NAMESPACE });
    return items.filter(
      ({ metadata }) => metadata.ownerReferences?.some(({ name }) => name === set) === true,
    );
  }

  /** Ends a guest after its job, as its operator would. */
  async endVM(name: string): Promise<void> {
    await this.cluster.client().delete(VMS, { namespace: NAMESPACE, name });
  }
}
