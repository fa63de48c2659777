/**
 * Describes the values of the chart in one place. `charts/berth/values.schema.json` is made from this description, and tests use the
 * description to change each value once.
 */
import * as z from 'zod';
import { configSchema as agentConfig } from '../../agent/config.ts';
import { clusterNetworks } from '../../agent/networkdriver.ts';
import { logLevelSchema } from '../../base/config.ts';
import { configSchema as operatorConfig } from '../../operator/config/config.ts';
import { configSchema as serverConfig } from '../../server/config.ts';

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

const count = z.union([z.int().min(1), text.regex(/^([1-9]\d?|100)%$/)]);
const probe = z
  .partialRecord(
    z.enum([
      'initialDelaySeconds',
      'periodSeconds',
      'timeoutSeconds',
      'failureThreshold',
      'successThreshold',
    ]),
    z.int().min(0),
  )
  .meta({ examples: [{ periodSeconds: 7, timeoutSeconds: 3 }] });
const annotations = texts.meta({ examples: [{ 'example.com/note': 'kept' }] });
const networks = z
  .array(z.union([z.cidrv4(), z.cidrv6()]))
  .meta({ examples: [['10.0.0.1/32', 'fd00::1/128']] });
/** Values of any Service. */
const families = {
  labels,
  annotations,
  ipFamilyPolicy: z.enum(['', 'SingleStack', 'PreferDualStack', 'RequireDualStack']),
  ipFamilies: z.array(z.enum(['IPv4', 'IPv6'])).meta({ examples: [['IPv6', 'IPv4']] }),
};

/** Values of any program. */
const program = {
  resources: object.meta({ examples: [{ requests: { cpu: '1', memory: '1Gi' } }] }),
  tolerations: z.array(object).meta({ examples: [[{ key: 'infra', operator: 'Exists' }]] }),
  podLabels: labels,
  podAnnotations: labels,
  priorityClassName: text,
  annotations,
  revisionHistoryLimit: z.int().min(0),
  serviceAccount: z.strictObject({ annotations }),
  extraEnv: z.array(object).meta({ examples: [[{ name: 'NODE_OPTIONS', value: '--trace-warnings' }]] }),
  extraVolumes: z.array(object).meta({ examples: [[{ name: 'images', hostPath: { path: '/srv/images' } }]] }),
  extraVolumeMounts: z.array(object).meta({ examples: [[{ name: 'config', mountPath: '/srv/images' }]] }),
  hostAliases: z.array(object).meta({ examples: [[{ ip: '192.0.2.1', hostnames: ['registry.example'] }]] }),
  dnsConfig: object.meta({ examples: [{ searches: ['fleet.example'] }] }),
  readinessProbe: probe,
};

/** Values of a Deployment of the control plane. */
const deployment = {
  replicas: z.int().min(1).max(9),
  ...program,
  nodeSelector: texts.meta({ examples: [{ 'kubernetes.io/arch': 'amd64' }] }),
  affinity: object.meta({ examples: [{ nodeAffinity: {} }] }),
  topologySpreadConstraints: z.array(object).meta({ examples: [[]] }),
  podDisruptionBudget: z.strictObject({
    enabled: z.boolean(),
    maxUnavailable: count.meta({ examples: [7] }),
    minAvailable: z.union([count, z.literal('')]).meta({ examples: ['50%'] }),
  }),
  strategy: object.meta({ examples: [{ type: 'RollingUpdate', rollingUpdate: { maxSurge: 2 } }] }),
  podSecurityContext: object.meta({ examples: [{ runAsUser: 1000, runAsNonRoot: true }] }),
  securityContext: object.meta({ examples: [{ allowPrivilegeEscalation: false, privileged: false }] }),
  runtimeClassName: text,
  schedulerName: text,
  startupProbe: probe,
  livenessProbe: probe,
};

const operator = z.strictObject({ image, ...deployment });

/** Values of a Service that clients outside the cluster can use. */
const exposed = {
  type: z.enum(['ClusterIP', 'NodePort', 'LoadBalancer']),
  ...families,
  loadBalancerClass: text,
  loadBalancerSourceRanges: networks,
};

const server = z.strictObject({
  enabled: z.boolean(),
  ...deployment,
  certificate: z.strictObject({ secretName: text }),
  port,
  service: z.strictObject({ ...exposed, externalTrafficPolicy: z.enum(['', 'Cluster', 'Local']) }),
  power: z.strictObject({
    enabled: z.boolean(),
    port,
    trustedProxies: networks,
    service: z.strictObject(exposed),
  }),
  config: without(z.toJSONSchema(serverConfig, { io: 'input' }), [
    'namespaces',
    'metrics',
    'health',
    'dpiMaximum',
    'power',
  ]),
});

const namespace = text.regex(/^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/);
const runners = z.strictObject({
  enabled: z.boolean(),
  privateServers: z
    .array(text.max(260).regex(/^[a-z0-9.-]+(:\d{1,5})?$/))
    .max(64)
    .meta({ examples: [['ghes.example:8443']] }),
  namespaces: z
    .array(z.strictObject({ name: namespace, secrets: z.array(text.min(1)).min(1) }))
    .max(256)
    .meta({ examples: [[{ name: 'platform-ci', secrets: ['github', 'authority'] }]] }),
  logLevel: logLevelSchema,
  ...deployment,
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
  annotations,
  scrapeTimeout: text.regex(/^(\d+(s|m))?$/).meta({ examples: ['9s'] }),
  honorLabels: z.boolean(),
  relabelings: z.array(object).meta({ examples: [[{ targetLabel: 'cluster', replacement: 'one' }]] }),
  metricRelabelings: z.array(object).meta({ examples: [[{ action: 'labeldrop', regex: 'note' }]] }),
};

const metrics = z.strictObject({
  port,
  service: z.strictObject(families),
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
    cidrs: networks,
    ports: z
      .array(port)
      .min(1)
      .meta({ examples: [[7443]] }),
  }),
  metricsFrom: z.array(object).meta({ examples: [[{ namespaceSelector: {} }]] }),
  extraIngress: z.array(object).meta({ examples: [[{ ports: [{ port: 9000 }] }]] }),
  extraEgress: z.array(object).meta({ examples: [[{ ports: [{ port: 53, protocol: 'UDP' }] }]] }),
});

const agent = z.strictObject({
  enabled: z.boolean(),
  image,
  nodeSelector: texts.meta({ examples: [{ 'berth.node-restriction.kubernetes.io/machines': 'yes' }] }),
  nodeNameSuffix: text.regex(/^-[a-z0-9-]*[a-z0-9]$/).meta({ examples: ['-vms'] }),
  // Zero is not allowed: with maxSurge 0, no agent would ever be upgraded.
  maxUnavailable: count.meta({ examples: [7, '25%'] }),
  ...program,
  join: z.enum(['Certificate', 'ServiceAccount']),
  namespace: text.regex(/^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$/).meta({ examples: ['platform-ci'] }),
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
    'namespace',
    'dataDirectory',
    'kubeconfig',
    'bootstrapKubeconfig',
    'clusterCIDRs',
    'offered',
  ]),
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
  runners,
  // Helm adds values of other charts to this key.
  global: z.looseObject({
    imageRegistry: text.regex(/^[^/\s].*$|^$/).meta({ examples: ['registry.example/berth'] }),
  }),
  commonLabels: labels,
  extraObjects: z.array(object).meta({
    examples: [
      [
        {
          apiVersion: 'v1',
          kind: 'ConfigMap',
          metadata: { name: 'extra' },
          data: { release: '{{ .Release.Name }}' },
        },
      ],
    ],
  }),
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
  mutatingPolicies: z.enum(['auto', 'v1', 'v1beta1', 'none']),
  roles,
  priorityClass: z.strictObject({
    create: z.boolean(),
    name: text.regex(/^[a-z0-9.-]{1,63}$/),
    value: z.int().min(1).max(1_000_000_000),
  }),
  crds: z.strictObject({ enabled: z.boolean(), keep: z.boolean(), annotations }),
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
  return z.toJSONSchema(valuesSchema, { io: 'input', target: 'draft-7' });
}
