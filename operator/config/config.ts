/**
 * The operator's configuration: one YAML file, checked at start. Every mistake is listed with its path.
 */
import * as z from 'zod';
import { checkConfig, readConfig } from '../../base/config.ts';
import { DEFAULT_NAMESPACE, NAMESPACE_PREFIX, SYSTEM_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import { portRulesSchema } from '../../api/v1alpha1/reservable.ts';

const quantity = z.string().refine(isQuantity, { error: 'is not a quantity such as 4Gi' });
const seconds = (minimum: number, fallback: number) => z.number().min(minimum).default(fallback);

function isQuantity(text: string): boolean {
  try {
    return parseQuantity(text) >= 0n;
  } catch {
    return false;
  }
}

const defaultsSchema = z
  .strictObject({
    image: z.string().optional(),
    cpu: z.number().int().min(1).max(256).default(2),
    memory: quantity.default('4Gi'),
    diskSize: quantity.optional(),
    /** Counted for a disk whose size nobody knows before the host has its image. */
    diskRequest: quantity.default('10Gi'),
    architecture: z.enum(['amd64', 'arm64']).optional(),
    os: z.enum(['MacOS', 'Linux', 'Windows']).optional(),
    network: z.strictObject({ mode: z.enum(['NAT', 'Bridge']) }).default({ mode: 'NAT' }),
    hardwareIdentity: z.enum(['Consistent', 'Dynamic']).default('Consistent'),
    deployTimeoutSeconds: z.number().int().min(1).default(600),
  })
  .prefault({});

const metricsSchema = z
  .strictObject({
    /** `HOST:PORT`, or `:PORT` for every address. */
    address: z.string().default(':443'),
    /** PEM files, re-read when they change; without them the operator makes its own and rotates it. */
    certificateFile: z.string().optional(),
    keyFile: z.string().optional(),
    /** Names that a self-made certificate is good for. */
    dnsNames: z.array(z.string()).default(['berth-operator.berth-system.svc', 'localhost']),
    /** Lifetime of a self-made certificate; it is replaced at two thirds of it. */
    certificateLifetimeSeconds: seconds(1, 90 * 24 * 3600),
  })
  .refine(({ certificateFile, keyFile }) => (certificateFile === undefined) === (keyFile === undefined), {
    error: 'certificateFile and keyFile belong together: give both, or neither',
  })
  .prefault({});

/** The place for content that is made in the cluster (copies of VMs' disks, files from web servers): one of the two, or none. */
const imageStorageSchema = z
  .strictObject({
    /** `registry.example/berth`: repositories below it are made as needed; hosts have its credentials. */
    registry: z.strictObject({ prefix: z.string().regex(/^[^/\s]+(\/[a-z0-9._-]+)*$/) }).optional(),
    /** Below the storage folder that every host mounts (`images.storageFolder` of its agent). */
    folder: z.literal(true).optional(),
    /**
     * How long content stays that nothing needs any more. Less than two minutes would take it away from what an operator
     * is about to write down: the longest that a reconcile takes.
     */
    keepSeconds: seconds(1, 600),
  })
  .refine(({ registry, folder }) => (registry === undefined) !== (folder === undefined), {
    error: 'exactly one of registry and folder is needed',
  });

/** Rules for every host, which it cannot change itself. */
const hostsSchema = z
  .strictObject({
    /** Addresses that hosts may have serving certificates for: by default private ones (RFC 1918, RFC 4193). */
    addressCIDRs: z
      .array(z.union([z.cidrv4(), z.cidrv6()]))
      .min(1)
      .default(['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7']),
    /** The account of the agents of the DaemonSet, in the system namespace: its Pods may join as the hosts of their nodes. */
    serviceAccount: z.string().min(1).default('berth-agent'),
    /** A host of this name beside a kubelet's Node, NODE + this, is on the same machine. None is where it is empty. */
    nodeNameSuffix: z
      .string()
      .regex(/^(-[a-z0-9-]*[a-z0-9])?$/)
      .default('-berth'),
  })
  .prefault({});

export const configSchema = z.strictObject({
  namespaces: z
    .strictObject({
      system: z.string().default(SYSTEM_NAMESPACE),
      default: z.string().default(DEFAULT_NAMESPACE),
      prefix: z.string().min(1).default(NAMESPACE_PREFIX),
    })
    .prefault({}),
  osx_node_platform_quota_pod: z.number().int().min(0).max(1000).default(4),
  x86_node_platform_quota_pod: z.number().int().min(0).max(1000).default(16),
  vm_shared_disk_enabled: z.boolean().default(false),
  /** How long a host may take until it has an image, from when it was first queued, over all its Jobs. */
  cache_job_active_deadline_seconds: z.number().int().min(1).default(10_800),
  /** How many Jobs one ImageCacheEntry may have at once: they share a registry and its line. */
  cacheJobsPerEntry: z.number().int().min(1).max(1000).default(5),
  /** How long a cache Job may wait for a place on its host before the next host has its turn. */
  cacheTurnSeconds: seconds(1, 60),
  /** First wait before a host that failed is tried again; it doubles up to an hour. */
  cacheRetrySeconds: seconds(1, 60),
  /** How long a host may be silent before its VMs are Failed/HostLost; from its Node's Ready turning Unknown. */
  hostLostTimeoutSeconds: seconds(1, 600),
  hosts: hostsSchema,
  /**
   * The share of the VM's disk that its Pod requests of the host's disk. Disks grow as guests write, and few are ever full:
   * with 1 each has its room for certain.
   */
  diskRequestRatio: z.number().gt(0).max(1).default(0.2),
  /** The class of every machine's Pod, so that none preempts another and no DaemonSet preempts a VM. */
  priorityClassName: z.string().default('system-node-critical'),
  defaults: defaultsSchema,
  /** Which ports of hosts VMs may reserve; each agent holds to a setting of its own of that name. */
  ports: portRulesSchema,
  imageStorage: imageStorageSchema.optional(),
  workers: z.number().int().min(1).max(256).default(16),
  metrics: metricsSchema,
  health: z.strictObject({ address: z.string().default(':8081') }).prefault({}),
  leaderElection: z
    .strictObject({
      leaseDurationSeconds: seconds(3, 9),
      renewDeadlineSeconds: seconds(2, 6),
      retryPeriodSeconds: seconds(0.2, 1),
    })
    .prefault({}),
  logLevel: z.enum(['debug', 'info', 'warn', 'error']).default('info'),
});

export type OperatorConfig = z.infer<typeof configSchema>;

/** Whether Berth serves a namespace: its VMs and all that belongs to them. */
export function isServed(namespace: string, { namespaces }: OperatorConfig): boolean {
  return namespace === namespaces.default || namespace.startsWith(namespaces.prefix);
}

/** Reads and checks the file; all defaults without one. @throws ConfigError listing every mistake. */
export function loadConfig(path: string | undefined): OperatorConfig {
  return parseConfig(path === undefined ? {} : readConfig(path), path ?? 'configuration');
}

/** @throws ConfigError listing every mistake of `document`. */
export function parseConfig(document: unknown, name: string): OperatorConfig {
  return checkConfig(configSchema, document, name);
}
