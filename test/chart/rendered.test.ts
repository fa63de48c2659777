/** Compares the manifests of the chart with those of the harness, and with the values of the chart. */
import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { beforeAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { loadConfig as loadAgentConfig } from '../../agent/config.ts';
import { parseConfig } from '../../operator/config/config.ts';
import { configSchema as runnersConfig } from '../../runners/config.ts';
import { configSchema as serverConfig } from '../../server/config.ts';
import { CHART, EVERYTHING, find, type Manifest, manifests, parseManifests, run } from '../support/chart.ts';
import { makeFolder } from '../support/folder.ts';

const ROOT = join(import.meta.dirname, '..', '..');

let defaults: Manifest[];
let everything: Manifest[];

beforeAll(async () => {
  defaults = await manifests();
  everything = await manifests(EVERYTHING);
});

async function filesOf(folder: string): Promise<Manifest[]> {
  const names = (await readdir(folder)).filter((name) => name.endsWith('.yaml'));
  const texts = await Promise.all(names.map((name) => readFile(join(folder, name), 'utf8')));
  return texts.flatMap(parseManifests);
}

/** Removes the parts that only the chart adds: its labels, and the annotation that lets Helm keep the object. */
function bare({ metadata, ...rest }: Manifest): object {
  const labels = Object.entries(metadata.labels ?? {}).filter(
    ([key]) => !key.startsWith('app.kubernetes.io/') && key !== 'helm.sh/chart',
  );
  const { labels: _, annotations, ...others } = metadata;
  const kept = Object.entries(annotations ?? {}).filter(([key]) => key !== 'helm.sh/resource-policy');
  return {
    ...rest,
    metadata: { ...others, ...(labels.length > 0 && { labels: Object.fromEntries(labels) }) },
    annotations: Object.fromEntries(kept),
  };
}

function isKind({ kind }: Manifest): boolean {
  return kind === 'CustomResourceDefinition';
}

function kindsOf(objects: readonly Manifest[]): Record<string, object> {
  return Object.fromEntries(objects.filter(isKind).map((one) => [one.metadata.name, bare(one)]));
}

describe('the chart renders the same as the harness installs:', () => {
  test.each(['policies', 'mutatingpolicies', 'rbac'])('%s', async (part) => {
    const files = await filesOf(join(CHART, 'files', part));
    expect(files.length).toBeGreaterThan(1);
    const objects = await manifests({
      namespaces: { createSystem: true },
      mutatingPolicies: 'v1',
      server: { power: { enabled: true } },
      runners: { enabled: true },
    });
    for (const file of files) {
      expect(bare(find(objects, file.kind, file.metadata.name))).toEqual(bare(file));
    }
  });

  test('kinds', async () => {
    const files = await filesOf(join(ROOT, 'crds'));
    expect(kindsOf(defaults)).toEqual(kindsOf(files));
  });

  test('kinds for displays of 320 DPI', async () => {
    const generate = join(ROOT, 'hack', 'generate.ts');
    const args = [generate, '--display-dpi-maximum', '320'];
    const { stdout } = await promisify(execFile)(process.execPath, args, { maxBuffer: 4 * 1024 * 1024 });
    const rendered = await manifests({ displayDPIMaximum: 320 });
    expect(kindsOf(rendered)).toEqual(kindsOf(parseManifests(stdout)));
  });
});

function variables(objects: readonly Manifest[], policy: string): Record<string, string> {
  const { spec } = find(objects, 'ValidatingAdmissionPolicy', policy);
  const list = spec.variables as { name: string; expression: string }[];
  return Object.fromEntries(list.map(({ name, expression }) => [name, expression]));
}

test('another namespace and other names of served namespaces reach configuration, policies and rights', async () => {
  const objects = await manifests(
    { namespaces: { default: 'fleet-main', prefix: 'fleet-' }, config: { priorityClassName: 'machines' } },
    { namespace: 'machinery' },
  );
  const config = parse(find(objects, 'ConfigMap', 'berth-operator')['data']['operator.yaml']) as object;
  expect(config).toMatchObject({
    namespaces: { system: 'machinery', default: 'fleet-main', prefix: 'fleet-' },
    priorityClassName: 'machines',
  });
  expect(variables(objects, 'berth-pods')['operatorUser']).toBe(
    "'system:serviceaccount:machinery:berth-operator'",
  );
  expect(variables(objects, 'berth-custom-pods')).toMatchObject({ machinePriorityClass: "'machines'" });
  const conditions = find(objects, 'ValidatingAdmissionPolicy', 'berth-custom-pods').spec.matchConditions;
  expect(conditions.map(({ expression }: { expression: string }) => expression)).toEqual([
    "request.userInfo.username != 'system:serviceaccount:machinery:berth-operator'",
    "request.namespace == 'fleet-main' || request.namespace.startsWith('fleet-')",
  ]);
  const power = find(objects, 'ValidatingAdmissionPolicy', 'berth-server-power').spec.matchConstraints;
  expect(power.namespaceSelector.matchLabels).toEqual({ 'kubernetes.io/metadata.name': 'machinery' });
  expect(variables(objects, 'berth-kinds')).toMatchObject({ namespacePrefix: "'fleet-'" });
  expect(variables(objects, 'berth-references')).toMatchObject({ defaultNamespace: "'fleet-main'" });
  expect(variables(objects, 'berth-operator-workloads')).toMatchObject({ systemNamespace: "'machinery'" });
  const [subject] = find(objects, 'ClusterRoleBinding', 'berth-operator')['subjects'];
  expect(subject).toEqual({ kind: 'ServiceAccount', name: 'berth-operator', namespace: 'machinery' });
  // The descriptions of the kinds name the default namespace.
  const others = objects.filter((one) => !isKind(one)).map((one) => JSON.stringify(one));
  expect(others.filter((text) => text.includes('berth-system'))).toEqual([]);
});

/** Policies that the API server evaluates for a write, whoever writes. */
function policiesOf(operation: string, resource: string, namespace = 'kube-node-lease'): string[] {
  const policies = defaults.filter(({ kind }) => kind === 'ValidatingAdmissionPolicy');
  const matching = policies.filter(({ spec: { matchConstraints } }) => {
    const { resourceRules, namespaceSelector } = matchConstraints as MatchConstraints;
    const only = namespaceSelector?.matchLabels['kubernetes.io/metadata.name'] ?? namespace;
    const matches = (rule: ResourceRule): boolean =>
      rule.operations.includes(operation) && rule.resources.includes(resource);
    return only === namespace && resourceRules.some(matches);
  });
  return matching.map(({ metadata }) => metadata.name);
}

interface ResourceRule {
  operations: string[];
  resources: string[];
}
interface MatchConstraints {
  resourceRules: ResourceRule[];
  namespaceSelector?: { matchLabels: Record<string, string> };
}

test('with default values, at most one policy reads each status of a Pod or Node, and none the heartbeats of nodes', () => {
  expect(policiesOf('UPDATE', 'pods/status')).toEqual(['berth-pods']);
  expect(policiesOf('UPDATE', 'nodes/status')).toEqual(['berth-nodes']);
  expect(policiesOf('UPDATE', 'leases')).toEqual([]);
});

describe('the rendered configuration file is valid for', () => {
  test('the operator', () => {
    for (const objects of [defaults, everything]) {
      const text = find(objects, 'ConfigMap', 'berth-operator')['data']['operator.yaml'] as string;
      expect(parseConfig(parse(text), 'operator.yaml')).toMatchObject({
        osx_node_platform_quota_pod: 4,
        cache_job_active_deadline_seconds: 10_800,
        vm_shared_disk_enabled: false,
        metrics: { address: ':8443' },
      });
    }
  });

  test('the HTTP API', () => {
    for (const objects of [defaults, everything]) {
      const text = find(objects, 'ConfigMap', 'berth-server')['data']['server.yaml'] as string;
      expect(serverConfig.parse(parse(text))).toMatchObject({
        http: {
          address: ':8443',
          dnsNames: expect.arrayContaining(['berth-server.berth-system.svc', 'localhost']) as string[],
        },
        metrics: { address: ':9443' },
        dpiMaximum: 240,
      });
    }
  });

  test('the runners for GitHub', () => {
    const text = find(everything, 'ConfigMap', 'berth-runners')['data']['runners.yaml'] as string;
    expect(runnersConfig.parse(parse(text))).toMatchObject({
      namespaces: { system: 'berth-system', served: ['platform-default'] },
      privateServers: [],
      clusterCIDRs: EVERYTHING.agent.clusterCIDRs,
    });
  });

  test('the runners for GitHub have the values of the operator that decide on which hosts VMs fit', async () => {
    const shared = { cpu: 4, memory: '8Gi', architecture: 'arm64', diskSize: '40Gi', diskRequest: '20Gi' };
    const config = {
      defaults: { ...shared, hardwareIdentity: 'Dynamic' },
      diskRequestRatio: 0.5,
      vm_shared_disk_enabled: true,
    };
    const objects = await manifests({ runners: { enabled: true }, config });
    const text = find(objects, 'ConfigMap', 'berth-runners')['data']['runners.yaml'] as string;
    expect(runnersConfig.parse(parse(text))).toMatchObject({
      defaults: shared,
      diskRequestRatio: 0.5,
      vm_shared_disk_enabled: true,
    });
  });

  test('the agent', () => {
    const folder = makeFolder();
    const file = join(folder, 'agent.yaml');
    writeFileSync(file, find(everything, 'ConfigMap', 'berth-agent')['data']['agent.yaml']);
    const [container] = find(everything, 'DaemonSet', 'berth-agent')['spec'].template.spec.containers;
    const names = (container.env as { name: string }[]).map(({ name }) => name);
    expect(names).toEqual(['KUBERNETES_NODE', 'BERTH_NODE_NAME', 'BERTH_ADDRESS']);
    const environment = { BERTH_NODE_NAME: 'node-1-berth', BERTH_ADDRESS: '192.0.2.1' };
    const config = loadAgentConfig(file, environment);
    expect(config).toMatchObject({ nodeName: 'node-1-berth', offered: { cpu: 4, memory: 8 * 1024 ** 3 } });
    expect(config.clusterCIDRs).toEqual(EVERYTHING.agent.clusterCIDRs);
  });
});

test('make manifests prints the reason of helm for refused values, and nothing else', async () => {
  const script = join(CHART, '..', '..', 'hack', 'manifests.ts');
  const { code, stdout, stderr } = await run(process.execPath, [script, '--set', 'displayDPIMaximum=300']);
  expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
  expect(stderr).toMatch(/^Error: values don't meet the specifications of the schema.*displayDPIMaximum/s);
  expect(stderr).not.toContain('    at ');
});

test('only a new configuration replaces the Pods', async () => {
  const checksum = (objects: readonly Manifest[], kind: string, name: string) =>
    find(objects, kind, name)['spec'].template.metadata.annotations['checksum/config'] as string;
  const changed = await manifests({ ...EVERYTHING, config: { osx_node_platform_quota_pod: 2 } });
  expect(checksum(changed, 'Deployment', 'berth-operator')).not.toBe(
    checksum(everything, 'Deployment', 'berth-operator'),
  );
  const agents = checksum(everything, 'DaemonSet', 'berth-agent');
  expect(checksum(changed, 'DaemonSet', 'berth-agent')).toBe(agents);
  // Agents read the address of the API server only when they start.
  const agent = { ...EVERYTHING.agent, apiServer: 'https://10.96.0.1:443' };
  const moved = await manifests({ ...EVERYTHING, agent });
  expect(checksum(moved, 'DaemonSet', 'berth-agent')).not.toBe(agents);
  // The same configuration, rendered again beside another value, gives the same Pods.
  const rules = { enabled: true, runbooks: 'https://wiki.example/runbooks.md' };
  const other = await manifests({ ...EVERYTHING, metrics: { ...EVERYTHING.metrics, rules } });
  for (const [kind, name] of [
    ['Deployment', 'berth-operator'],
    ['Deployment', 'berth-server'],
    ['DaemonSet', 'berth-agent'],
  ] as const) {
    expect(find(other, kind, name)['spec'].template).toEqual(find(everything, kind, name)['spec'].template);
  }
});

test('the chart has the version of the programs, and names its kinds', async () => {
  const text = await readFile(join(CHART, 'Chart.yaml'), 'utf8');
  const chart = parse(text) as { annotations: Record<string, string> };
  const { version } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8')) as { version: string };
  expect(chart).toMatchObject({ version, appVersion: version });
  const named = parse(chart.annotations['artifacthub.io/crds'] ?? '') as { name: string; version: string }[];
  const kinds = defaults
    .filter(isKind)
    .map(({ metadata, spec }) => ({ name: metadata.name, version: spec.versions[0].name as string }));
  expect(named.map(({ name, version: one }) => ({ name, version: one }))).toEqual(
    expect.arrayContaining(kinds),
  );
  expect(named).toHaveLength(kinds.length);
});

test('install.yaml has all objects and no hook, and creates its namespaces', async () => {
  const folder = makeFolder();
  const file = join(folder, 'install.yaml');
  const program = [join(ROOT, 'hack', 'manifests.ts'), '--output', file];
  await promisify(execFile)(process.execPath, program);
  const objects = parseManifests(await readFile(file, 'utf8'));
  const hooks = objects.filter(({ metadata }) => metadata.annotations?.['helm.sh/hook'] !== undefined);
  expect(hooks).toEqual([]);
  const idOf = ({ kind, metadata }: Manifest) => `${kind} ${metadata.namespace ?? ''}/${metadata.name}`;
  expect(objects.map(idOf).toSorted()).toEqual([...defaults.map(idOf), 'Namespace /berth-system'].toSorted());
  expect(objects.map(idOf)).toContain('Namespace /platform-default');
  const namespace = find(objects, 'Namespace', 'berth-system');
  expect(namespace.metadata.labels).toMatchObject({ 'pod-security.kubernetes.io/enforce': 'privileged' });
});
