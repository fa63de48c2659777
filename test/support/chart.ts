/** Functions that render the chart with helm in tests. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { parseAllDocuments } from 'yaml';
import type { KubeObject } from '../../kube/objects.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { resolveChartTools } from '../../hack/cluster/toolchain/toolchain.ts';

export const CHART = join(import.meta.dirname, '..', '..', 'charts', 'berth');
const OUTPUT_BYTES = 16 * 1024 * 1024;

/** A manifest with fields of any type, because tests read many different fields. */
export type Manifest = KubeObject & Record<string, any>; // oxlint-disable-line typescript/no-explicit-any

export interface Outcome {
  code: number;
  stdout: string;
  stderr: string;
}

export function run(file: string, args: readonly string[], input = ''): Promise<Outcome> {
  return new Promise((resolve, reject) => {
    const child = execFile(file, args, { maxBuffer: OUTPUT_BYTES }, (error, stdout, stderr) => {
      if (error !== null && typeof error.code !== 'number') {
        reject(error);
      } else {
        resolve({ code: child.exitCode ?? 1, stdout, stderr });
      }
    });
    child.stdin?.end(input);
  });
}

export async function helm(args: readonly string[], input?: string): Promise<Outcome> {
  return await run((await resolveChartTools()).helm, args, input);
}

/** Runs `helm template` with these values, which override the chart's own values. */
export function template(
  values: object = {},
  options: { namespace?: string; args?: readonly string[] } = {},
): Promise<Outcome> {
  const { namespace = 'berth-system', args = [] } = options;
  const fixed = ['template', 'berth', CHART, '--namespace', namespace, '--values', '-'];
  // The values are JSON, because helm reads `yes` in YAML as a boolean.
  return helm([...fixed, ...args], JSON.stringify(values));
}

/** Returns the output of {@link template} as objects. Rejects with helm's message if helm fails. */
export async function manifests(
  values: object = {},
  options: { namespace?: string; args?: readonly string[] } = {},
): Promise<Manifest[]> {
  const { code, stdout, stderr } = await template(values, options);
  if (code !== 0) {
    throw new Error(stderr);
  }
  return parseManifests(stdout);
}

/** Options with which helm reads this cluster while it renders, as in an installation. It adopts objects that exist. */
export function reading({ kubeconfig }: Pick<Cluster, 'kubeconfig'>): { args: string[] } {
  return { args: ['--dry-run=server', '--take-ownership', '--kubeconfig', kubeconfig] };
}

/** Returns the objects of the hook of `helm uninstall`. Only a rendering that reads a cluster has them. */
export async function uninstallHook(
  cluster: Pick<Cluster, 'kubeconfig'>,
  values: object = {},
): Promise<Manifest[]> {
  const objects = await manifests(values, reading(cluster));
  return objects.filter(({ metadata }) => metadata.annotations?.['helm.sh/hook'] === 'pre-delete');
}

/** Returns the documents of a YAML file, without empty documents. */
export function parseManifests(text: string): Manifest[] {
  return parseAllDocuments(text)
    .map((document) => document.toJS() as Manifest | null)
    .filter((document) => document !== null);
}

export function find(objects: readonly Manifest[], kind: string, name: string): Manifest {
  const found = objects.find((one) => one.kind === kind && one.metadata.name === name);
  if (found === undefined) {
    throw new Error(`no ${kind} ${name} among what was rendered`);
  }
  return found;
}

/** Values with which hosts join without a certificate, in addition to those that enable the agent. */
export const ACCOUNT_HOSTS = {
  join: 'ServiceAccount',
  namespace: 'platform-default',
  config: { certificates: { servingSigner: 'signer.example/hosts' } },
};

/** Values that turn on every optional part of the chart. */
export const EVERYTHING = {
  agent: {
    enabled: true,
    nodeSelector: { 'berth.node-restriction.kubernetes.io/machines': 'true' },
    clusterCIDRs: ['10.244.0.0/16', '10.96.0.0/12'],
  },
  runners: { enabled: true, namespaces: [{ name: 'platform-default', secrets: ['berth-github'] }] },
  priorityClass: { create: true },
  certificate: { certManager: { enabled: true, issuerRef: { name: 'authority' } } },
  metrics: {
    readers: [{ name: 'prometheus', namespace: 'monitoring' }],
    serviceMonitor: { enabled: true },
    hosts: { enabled: true },
    rules: { enabled: true },
    dashboard: { enabled: true },
  },
  networkPolicy: { enabled: true },
  server: { power: { enabled: true } },
  namespaces: { createSystem: true },
  mutatingPolicies: 'v1',
  roles: {
    defaultDev: ['oidc:all'],
    dev: ['oidc:devs'],
    admin: ['oidc:admins'],
    namespaceAdmin: ['oidc:admins'],
    viewer: ['oidc:auditors'],
  },
  uninstall: { drain: true },
};
