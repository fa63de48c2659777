/**
 * Describes the values of the chart in one place. `charts/berth/values.schema.json` is made from this description, and tests use the
 * description to change each value once. `charts/berth/files/crds/` is a copy of `crds/`, because Helm reads only files inside a chart.
 *
 *   values.ts            writes both
 *   values.ts --check    exits 1 and prints the differences when they are not current
 */
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import * as z from 'zod';
import { isMissing } from '../base/errors.ts';
import { configSchema as agentConfig } from '../agent/config.ts';
import { clusterNetworks } from '../agent/network/reach.ts';
import { configSchema as operatorConfig } from '../operator/config/config.ts';
import { configSchema as serverConfig } from '../server/config.ts';
import { runCommand } from './command.ts';

const ROOT = join(import.meta.dirname, '..');
const CHART = join(ROOT, 'charts', 'berth');

const text = z.string();
const texts = z.record(z.string(), z.string());
const port = z.int().min(1).max(65_535);
/** Objects that are passed to Kubernetes unchanged. Only the API server checks their content. */
const object = z.record(z.string(), z.unknown());
const labels = texts.meta({ examples: [{ team: 'fleet' }] });

const image = z.strictObject({
  repository: text.min(1),
  tag: text.describe("The chart's appVersion when empty."),
  digest: text
    .regex(/^(sha256:[0-9a-f]{64})?$/)
    .describe('Wins over the tag.')
    .meta({ examples: [`sha256:${'0'.repeat(64)}`] }),
  pullPolicy: z.enum(['Always', 'IfNotPresent', 'Never']),
});

const placement = {
  resources: object.meta({ examples: [{ requests: { cpu: '1', memory: '1Gi' } }] }),
  tolerations: z.array(object).meta({ examples: [[{ key: 'infra', operator: 'Exists' }]] }),
  podLabels: labels,
  podAnnotations: labels,
  priorityClassName: text,
};

/** Values of a Deployment of the control plane. */
const deployment = {
  replicas: z.int().min(1).max(9),
  ...placement,
  nodeSelector: texts.meta({ examples: [{ 'kubernetes.io/arch': 'amd64' }] }),
  affinity: object.meta({ examples: [{ nodeAffinity: {} }] }),
  topologySpreadConstraints: z.array(object).meta({ examples: [[]] }),
  podDisruptionBudget: z.strictObject({ enabled: z.boolean(), maxUnavailable: z.int().min(1) }),
};

const operator = z.strictObject({ image, ...deployment });

const server = z.strictObject({
  enabled: z.boolean(),
  ...deployment,
  certificate: z.strictObject({ secretName: text }),
  port,
  config: without(z.toJSONSchema(serverConfig, { io: 'input' }), [
    'namespaces',
    'metrics',
    'health',
    'dpiMaximum',
  ]),
});

const certificate = z.strictObject({
  secretName: text,
  certManager: z.strictObject({
    enabled: z.boolean(),
    issuerRef: z.strictObject({
      name: text,
      // Any kind is allowed, because other projects also provide issuers for cert-manager.
      kind: text.min(1),
      group: text.min(1),
    }),
    duration: text.regex(/^\d+h$/).meta({ examples: ['720h'] }),
  }),
});

const monitor = {
  enabled: z.boolean(),
  interval: text.regex(/^\d+(s|m)$/).meta({ examples: ['45s'] }),
  labels,
};

const metrics = z.strictObject({
  port,
  readers: z
    .array(z.strictObject({ name: text.min(1), namespace: text.min(1) }))
    .meta({ examples: [[{ name: 'prometheus-k8s', namespace: 'monitoring' }]] }),
  serviceMonitor: z.strictObject(monitor),
  hosts: z.strictObject(monitor),
  rules: z.strictObject({
    enabled: z.boolean(),
    labels,
    runbooks: text.regex(/^(https?:\/\/.+)?$/).meta({ examples: ['https://wiki.example/runbooks.md'] }),
  }),
  dashboard: z.strictObject({ enabled: z.boolean(), labels, annotations: labels }),
});

const networkPolicy = z.strictObject({
  enabled: z.boolean(),
  apiServer: z.strictObject({
    cidrs: z.array(z.union([z.cidrv4(), z.cidrv6()])).meta({ examples: [['10.0.0.1/32', 'fd00::1/128']] }),
    ports: z
      .array(port)
      .min(1)
      .meta({ examples: [[7443]] }),
  }),
  metricsFrom: z.array(object).meta({ examples: [[{ namespaceSelector: {} }]] }),
});

const agent = z.strictObject({
  enabled: z.boolean(),
  image,
  nodeSelector: texts.meta({ examples: [{ 'berth.node-restriction.kubernetes.io/machines': 'yes' }] }),
  nodeNameSuffix: text.regex(/^-[a-z0-9-]*[a-z0-9]$/).meta({ examples: ['-vms'] }),
  // Zero is not allowed: with maxSurge 0, no agent would ever be upgraded.
  maxUnavailable: z.union([z.int().min(1), text.regex(/^([1-9]\d?|100)%$/)]).meta({ examples: [7, '25%'] }),
  ...placement,
  share: z.strictObject({
    cpu: z.int().min(1),
    memory: text.regex(/^\d+(Ki|Mi|Gi|Ti)?$/).meta({ examples: ['24Gi'] }),
  }),
  hostPath: text.regex(/^\/./).meta({ examples: ['/srv/berth'] }),
  clusterCIDRs: clusterNetworks,
  guestsMayReachCluster: z.boolean(),
  apiServer: text.regex(/^https:\/\//).meta({ examples: ['https://10.96.0.1:443'] }),
  config: without(z.toJSONSchema(agentConfig, { io: 'input' }), [
    'nodeName',
    'address',
    'dataDirectory',
    'kubeconfig',
    'bootstrapKubeconfig',
    'clusterCIDRs',
    'offered',
  ]),
  extraVolumes: z.array(object).meta({ examples: [[{ name: 'images', hostPath: { path: '/srv/images' } }]] }),
  extraVolumeMounts: z.array(object).meta({ examples: [[{ name: 'data', mountPath: '/srv/images' }]] }),
});

const groups = z
  .array(text.regex(/^\S(.{0,251}\S)?$/))
  .max(64)
  .meta({ examples: [['oidc:team']] });

const roles = z.strictObject({
  defaultDev: groups,
  dev: groups,
  admin: groups,
  namespaceAdmin: groups,
  viewer: groups,
  customUsersAreClusterAdmins: z.boolean(),
});

export const valuesSchema = z.strictObject({
  operator,
  server,
  imagePullSecrets: z.array(z.strictObject({ name: text.min(1) })).meta({ examples: [[{ name: 'pull' }]] }),
  config: without(z.toJSONSchema(operatorConfig, { io: 'input' }), [
    'namespaces',
    'metrics',
    'health',
    'roles',
  ]),
  displayDPIMaximum: z.union([z.literal(240), z.literal(320)]),
  namespaces: z.strictObject({
    default: text.regex(/^[a-z0-9-]{1,63}$/).meta({ examples: ['platform-main'] }),
    prefix: text.regex(/^[a-z0-9-]{1,50}$/).meta({ examples: ['fleet-'] }),
    createSystem: z.boolean(),
    createDefault: z.boolean(),
  }),
  roles,
  priorityClass: z.strictObject({
    create: z.boolean(),
    name: text.regex(/^[a-z0-9.-]{1,63}$/),
    value: z.int().min(1).max(1_000_000_000),
  }),
  crds: z.strictObject({ enabled: z.boolean(), keep: z.boolean() }),
  certificate,
  metrics,
  networkPolicy,
  agent,
  uninstall: z.strictObject({
    enabled: z.boolean(),
    drain: z.boolean(),
    timeoutSeconds: z.int().min(10).max(86_400),
  }),
});

/** Returns the schema of a configuration file as part of the values, without the keys that the chart sets. */
function without(schema: z.core.JSONSchema.JSONSchema, keys: readonly string[]): z.ZodType {
  const { $schema: _, ...rest } = schema;
  const properties = Object.fromEntries(
    Object.entries(rest.properties ?? {}).filter(([key]) => !keys.includes(key)),
  );
  const required = (rest.required ?? []).filter((key) => !keys.includes(key));
  return z.unknown().meta({ ...rest, properties, required });
}

/** Returns the schema in the form that Helm reads. */
export function valuesJsonSchema(): z.core.JSONSchema.JSONSchema {
  const schema = z.toJSONSchema(valuesSchema, { io: 'input', target: 'draft-7' });
  // Helm adds this key to the values of a chart.
  return { ...schema, properties: { ...schema.properties, global: { type: 'object' } } };
}

/** Returns the text of every generated file by its path below the chart. */
async function generated(): Promise<Map<string, string>> {
  const files = new Map([['values.schema.json', `${JSON.stringify(valuesJsonSchema(), undefined, 2)}\n`]]);
  for (const name of await readdir(join(ROOT, 'crds'))) {
    files.set(join('files', 'crds', name), await readFile(join(ROOT, 'crds', name), 'utf8'));
  }
  return files;
}

async function present(): Promise<string[]> {
  await mkdir(join(CHART, 'files', 'crds'), { recursive: true });
  const crds = await readdir(join(CHART, 'files', 'crds'));
  return [...crds.map((name) => join('files', 'crds', name)), 'values.schema.json'];
}

async function main(): Promise<number> {
  const { values } = parseArgs({ options: { check: { type: 'boolean', default: false } } });
  const files = await generated();
  const stale = (await present()).filter((name) => !files.has(name));
  if (!values.check) {
    await Promise.all(stale.map((name) => rm(join(CHART, name))));
    await Promise.all([...files].map(([name, content]) => writeFile(join(CHART, name), content)));
    return 0;
  }
  const different: string[] = [];
  for (const [name, content] of files) {
    const actual = await readFile(join(CHART, name), 'utf8').catch(ignoreMissing);
    if (actual !== content) {
      different.push(`charts/berth/${name}: is not what hack/values.ts makes of it`);
    }
  }
  const found = [...stale.map((name) => `charts/berth/${name}: nothing makes this file`), ...different];
  for (const line of found) {
    console.error(line);
  }
  if (found.length > 0) {
    console.error('generated files are not current: run make generate');
  }
  return found.length === 0 ? 0 : 1;
}

function ignoreMissing(error: unknown): undefined {
  if (isMissing(error)) {
    return undefined;
  }
  throw error;
}

if (import.meta.main) {
  await runCommand(main);
}
