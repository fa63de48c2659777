/**
 * What the chart and a kubelet do for hosts that join with the token of the agent's Pod (agent.join=ServiceAccount), in a cluster without
 * kubelets. The signer of their serving certificates is played here, as a provider of Kubernetes would run it.
 */
import { readFileSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { readKey } from '../../kube/certificates/certificate.ts';
import { CERTIFICATE_SIGNING_REQUESTS, NODES, PODS } from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { signServing } from '../../hack/cluster/authority.ts';
import { waitFor } from '../../hack/wait.ts';

/** Signer in `charts/berth/files/servingsigner.yaml`. */
export const OTHER_SIGNER = 'signer.example/hosts';
/** The only namespace that these hosts serve. It is the one in `agentrights.yaml` and `agentpolicy.yaml` of `charts/berth/files`. */
export const SERVED = 'platform-default';
const SYSTEM = 'berth-system';
export const ACCOUNT = 'berth-agent';
const FILES = join(import.meta.dirname, '..', '..', 'charts', 'berth', 'files');
/** Time between two looks of the signer at the requests, in milliseconds. */
const LOOK_MILLISECONDS = 200;

/** Gives the agents' account and the operator the rights of the chart, and the policy that limits it, with the other signer. */
export async function letAccountsJoin(cluster: Cluster): Promise<void> {
  const policy = await readFile(join(FILES, 'agentpolicy.yaml'), 'utf8');
  const signer = '- name: servingSigner\n      expression: ';
  const changed = policy.replace(`${signer}"''"`, `${signer}"'${OTHER_SIGNER}'"`);
  const folder = await mkdtemp(join(tmpdir(), 'berth-account-'));
  await writeFile(join(folder, 'policy.yaml'), changed);
  const files = [
    join(folder, 'policy.yaml'),
    ...['agentrights.yaml', 'servingsigner.yaml'].map((file) => join(FILES, file)),
  ];
  await cluster.kubectl([
    'apply',
    '--server-side',
    '--force-conflicts',
    ...files.map((file) => `--filename=${file}`),
  ]);
  await rm(folder, { recursive: true });
}

/** Creates a Node as a kubelet does, and an agent's Pod on it. */
export async function createAgentPod(cluster: Cluster, node: string): Promise<void> {
  const client = cluster.client();
  await client.create(NODES, { metadata: { name: node } });
  await client.create(PODS, {
    metadata: { namespace: SYSTEM, name: `agent-on-${node}` },
    spec: {
      nodeName: node,
      serviceAccountName: ACCOUNT,
      automountServiceAccountToken: false,
      containers: [{ name: 'agent', image: 'any' }],
    },
  });
}

/** Returns a token of the agents' account that is bound to the agent's Pod on a node, to the Node itself, or to nothing. */
export async function agentToken(
  cluster: Cluster,
  bound?: { pod: string } | { node: string },
): Promise<string> {
  const to =
    bound === undefined
      ? []
      : 'pod' in bound
        ? ['--bound-object-kind=Pod', `--bound-object-name=agent-on-${bound.pod}`]
        : ['--bound-object-kind=Node', `--bound-object-name=${bound.node}`];
  const { stdout } = await cluster.kubectl(['create', 'token', ACCOUNT, `--namespace=${SYSTEM}`, ...to]);
  return stdout.trim();
}

/** Writes a kubeconfig as in the agent's Pod: the token is in a file beside it. Returns its path. */
export async function agentKubeconfig(cluster: Cluster, node: string): Promise<string> {
  const { server, certificateAuthority = '' } = await loadConnection({ kubeconfigPath: cluster.kubeconfig });
  const folder = await mkdtemp(join(cluster.directory, 'agent-'));
  await writeFile(join(folder, 'token'), await agentToken(cluster, { pod: node }));
  await writeFile(join(folder, 'ca.crt'), certificateAuthority);
  const name = 'berth';
  const config = {
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name, cluster: { server, 'certificate-authority': 'ca.crt' } }],
    users: [{ name, user: { tokenFile: 'token' } }],
    contexts: [{ name, context: { cluster: name, user: name } }],
    'current-context': name,
  };
  await writeFile(join(folder, 'kubeconfig'), stringify(config));
  return join(folder, 'kubeconfig');
}

/** Signs approved requests with the authority of the cluster, until the signal aborts. Rejects if a request cannot be signed. */
export async function runSigner(cluster: Cluster, signal: AbortSignal): Promise<void> {
  const pki = join(cluster.directory, 'pki');
  const authority = {
    key: readKey(readFileSync(join(pki, 'ca.key'), 'utf8')),
    certificate: readFileSync(join(pki, 'ca.crt'), 'utf8'),
  };
  const client = cluster.client();
  while (!signal.aborted) {
    const { items } = await client.list(CERTIFICATE_SIGNING_REQUESTS);
    for (const request of items.filter(({ spec }) => spec.signerName === OTHER_SIGNER)) {
      const { conditions = [], certificate } = request.status ?? {};
      if (certificate === undefined && conditions.some(({ type }) => type === 'Approved')) {
        const pem = Buffer.from(request.spec.request, 'base64').toString('utf8');
        const signed = Buffer.from(await signServing(authority, pem)).toString('base64');
        const status = { ...request.status, certificate: signed };
        await client.update(CERTIFICATE_SIGNING_REQUESTS, { ...request, status }, { subresource: 'status' });
      }
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MILLISECONDS));
  }
}

/** Resolves when policy berth-agents refuses what `attempt` does. Before, the API server does not know the policy and the rights. */
export async function untilPolicyActs(attempt: () => Promise<unknown>): Promise<void> {
  await waitFor('policy berth-agents to act', async () => {
    const outcome = await attempt().catch(String);
    return typeof outcome === 'string' && outcome.includes("'berth-agents'");
  });
}
