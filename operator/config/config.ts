/** Configuration of the operator: one YAML file, checked at start. An error lists every mistake with its path. */
import * as z from 'zod';
import {
  areFilesTogether,
  certificateFields,
  checkConfig,
  FILES_TOGETHER,
  LED_PROGRAM_FIELDS,
  readConfig,
} from '../../base/config.ts';
import {
  DEFAULT_NAMESPACE,
  NAMESPACE_PREFIX,
  SIGNER_NAME,
  SLOTS_MAXIMUM,
  SYSTEM_NAMESPACE,
} from '../../api/v1alpha1/names.ts';
import { portRulesSchema } from '../../api/v1alpha1/ports.ts';
import { DISK_REQUEST_RATIO, HARDWARE_DEFAULTS } from '../../api/v1alpha1/vmsources.ts';

const seconds = (minimum: number, fallback: number) => z.number().min(minimum).default(fallback);

const defaultsSchema = z
  .strictObject({
    image: HARDWARE_DEFAULTS.image,
    cpu: HARDWARE_DEFAULTS.cpu,
    memory: HARDWARE_DEFAULTS.memory,
    diskSize: HARDWARE_DEFAULTS.diskSize,
    diskRequest: HARDWARE_DEFAULTS.diskRequest,
    architecture: HARDWARE_DEFAULTS.architecture,
    os: HARDWARE_DEFAULTS.os,
    network: z.strictObject({ mode: z.enum(['NAT', 'Bridge']) }).default({ mode: 'NAT' }),
    hardwareIdentity: z.enum(['Consistent', 'Dynamic']).default('Consistent'),
    deployTimeoutSeconds: z.number().int().min(1).default(600),
  })
  .prefault({});

const metricsSchema = z
  .strictObject({
    /** Address to listen on: `HOST:PORT`, or `:PORT` for all addresses. */
    address: z.string().default(':443'),
    ...certificateFields(['berth-operator.berth-system.svc', 'localhost']),
    /**
     * Lifetime in seconds of the certificate if the operator creates it. The operator replaces the certificate after two thirds of this
     * time.
     */
    certificateLifetimeSeconds: seconds(1, 90 * 24 * 3600),
  })
  .refine(areFilesTogether, FILES_TOGETHER)
  .prefault({});

/**
 * Storage for content that Berth keeps in the cluster: copies of VMs' disks, uploaded files, and copies of files from web servers. The
 * storage is a registry or a folder.
 */
const imageStorageSchema = z
  .strictObject({
    /**
     * Registry with a path, for example `registry.example/berth`. The registry must create repositories below this path when a host pushes
     * to them. The agent of each host has the credentials for this registry in its own configuration.
     */
    registry: z.strictObject({ prefix: z.string().regex(/^[^/\s]+(\/[a-z0-9._-]+)*$/) }).optional(),
    /** True to store content below the storage folder that every host mounts (`images.storageFolder` of its agent). */
    folder: z.literal(true).optional(),
    /**
     * Time in seconds for which content stays when nothing needs it any more. It should be at least two minutes, the duration of the
     * longest reconcile. Otherwise the operator could remove content that a running reconcile is about to record in a status.
     */
    keepSeconds: seconds(1, 600),
  })
  .refine(({ registry, folder }) => (registry === undefined) !== (folder === undefined), {
    error: 'exactly one of registry and folder must be set',
  });

/** Rules for all hosts. The configuration of a host cannot change them. */
const hostsSchema = z
  .strictObject({
    /** Addresses for which hosts can get serving certificates. By default, these are private addresses (RFC 1918, RFC 4193). */
    addressCIDRs: z
      .array(z.union([z.cidrv4(), z.cidrv6()]))
      .min(1)
      .default(['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7']),
    /**
     * Name of the ServiceAccount of the DaemonSet's agents, in the system namespace. With the token of its Pod, an agent can join the
     * cluster only as the host on the Pod's own node.
     */
    serviceAccount: z.string().min(1).default('berth-agent'),
    /**
     * Suffix of the names of hosts whose agent comes from the DaemonSet. For example, with the suffix `-berth`, the host `a-berth` runs on
     * the same computer as the kubelet of the Node `a`. If the suffix is empty, no host shares a computer with a kubelet.
     */
    nodeNameSuffix: z
      .string()
      .regex(/^(-[a-z0-9-]*[a-z0-9])?$/)
      .default('-berth'),
    /**
     * Signer of serving certificates, in addition to `kubernetes.io/kubelet-serving`, for clusters whose own signer refuses hosts. The
     * operator approves the requests of hosts to this signer.
     */
    servingSigner: z.string().regex(SIGNER_NAME).optional(),
  })
  .prefault({});

/** Names of groups, as the API server sees them. The number of names is limited, because an admission policy checks each of them. */
const groups = z
  .array(z.string().regex(/^\S(.{0,251}\S)?$/))
  .max(64)
  .default([]);

/** Groups whose members have a role of Berth. The operator adds these groups to the RoleBindings of served namespaces. */
const rolesSchema = z
  .strictObject({
    /** Groups with the role dev in the default namespace. */
    defaultDev: groups,
    /** Groups with the role dev in every served namespace. */
    dev: groups,
    /** Groups with the role admin in every served namespace. */
    admin: groups,
  })
  .prefault({});

/** Power by demand: switching hosts with a Server off while nothing needs them, and on when VMs need them. */
const powerByDemandSchema = z
  .strictObject({
    enabled: z.boolean().default(false),
    /**
     * Time in seconds for which a host must be empty before it is switched off. If it is much shorter than the usual pause between two jobs,
     * jobs wait for hosts.
     */
    emptySeconds: z.number().int().min(5).max(604_800).default(900),
    /** Number of hosts of each architecture that stay on, so that the first VMs after a pause do not wait. */
    floor: z.number().int().min(0).max(100_000).default(1),
    /**
     * Longest time in seconds from the moment when a controller accepts On until its host reports. After this time, another host is
     * switched on instead, and this one is tried again later.
     */
    bootSeconds: z.number().int().min(5).max(3600).default(600),
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
  osx_node_platform_quota_pod: z.number().int().min(0).max(SLOTS_MAXIMUM).default(4),
  x86_node_platform_quota_pod: z.number().int().min(0).max(SLOTS_MAXIMUM).default(16),
  vm_shared_disk_enabled: z.boolean().default(false),
  /**
   * Time limit in seconds for a host to get an image. The time starts when the operator first queues the host. The limit covers all Jobs
   * that fetch the image on this host.
   */
  cache_job_active_deadline_seconds: z.number().int().min(1).default(10_800),
  /**
   * Largest number of Jobs that one ImageCacheEntry has at the same time. The limit exists because these Jobs share a registry and its
   * network link.
   */
  cacheJobsPerEntry: z.number().int().min(1).max(1000).default(5),
  /**
   * Longest time in seconds that a cache Job waits for a slot on its host. After this time, the operator deletes the Job and continues with
   * the next host in the queue.
   */
  cacheSlotWaitSeconds: seconds(1, 60),
  /**
   * Time in seconds between the first failure of a host to cache an image and the next attempt. The time doubles with each further failure,
   * up to an hour.
   */
  cacheRetrySeconds: seconds(1, 60),
  /**
   * Time in seconds after which the VMs of a host that does not report become Failed with the reason HostLost. The time starts when the
   * condition Ready of the host's Node becomes Unknown.
   */
  hostLostTimeoutSeconds: seconds(1, 600),
  hosts: hostsSchema,
  emulators: z
    .strictObject({
      /**
       * Architectures of the hosts on which emulators are allowed. If the host of a VM has another architecture, the VM's emulators do not
       * run.
       */
      architectures: z
        .array(z.enum(['amd64', 'arm64']))
        .min(1)
        .default(['arm64']),
    })
    .prefault({}),
  diskRequestRatio: DISK_REQUEST_RATIO,
  /**
   * PriorityClass of every machine's Pod. All these Pods have the same class, so no VM preempts another VM. With the default class, the Pod
   * of a DaemonSet cannot preempt a VM either.
   */
  priorityClassName: z.string().default('system-node-critical'),
  defaults: defaultsSchema,
  /** Ports that VMs are allowed to reserve on hosts. Each agent also has a setting of the same name, and enforces it on its host. */
  ports: portRulesSchema,
  imageStorage: imageStorageSchema.optional(),
  workers: z.number().int().min(1).max(256).default(16),
  metrics: metricsSchema,
  /** Metrics that count the runners of each scale set. A runner is a VM with the label `berth.dev/scale-set` or a generated name. */
  runnerMetrics: z
    .strictObject({
      enabled: z.boolean().default(false),
      /** Shortest time in seconds between two counts. If a scrape comes earlier, it gets the result of the previous count. */
      intervalSeconds: seconds(1, 30),
    })
    .prefault({}),
  roles: rolesSchema,
  powerByDemand: powerByDemandSchema,
  ...LED_PROGRAM_FIELDS,
});

export type OperatorConfig = z.infer<typeof configSchema>;

/**
 * Reads and checks the configuration file at `path`. If `path` is undefined, returns the defaults.
 * @throws ConfigError when the file cannot be read or is not valid; the error lists every mistake.
 */
export function loadConfig(path: string | undefined): OperatorConfig {
  return parseConfig(path === undefined ? {} : readConfig(path), path ?? 'configuration');
}

/**
 * Checks `document` and fills in defaults. `name` is the name of the document in error messages.
 * @throws ConfigError when `document` is not valid; the error lists every mistake.
 */
export function parseConfig(document: unknown, name: string): OperatorConfig {
  return checkConfig(configSchema, document, name);
}
