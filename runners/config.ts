/** Configuration of the runners for GitHub: one YAML file, which is checked at start. An error lists every mistake. */
import * as z from 'zod';
import {
  areFilesTogether,
  certificateFields,
  checkConfig,
  FILES_TOGETHER,
  LED_PROGRAM_FIELDS,
  readConfig,
} from '../base/config.ts';
import { DEFAULT_NAMESPACE, SYSTEM_NAMESPACE } from '../api/v1alpha1/names.ts';
import { DISK_REQUEST_RATIO, HARDWARE_DEFAULTS } from '../api/v1alpha1/vmsources.ts';

const namespaceName = z.string().regex(/^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/);
const serverName = z
  .string()
  .max(260)
  .regex(/^[a-z0-9.-]+(:\d{1,5})?$/, 'Use a host name in small letters, with a port if it is not 443');

export const configSchema = z.strictObject({
  namespaces: z
    .strictObject({
      system: namespaceName.default(SYSTEM_NAMESPACE),
      default: namespaceName.default(DEFAULT_NAMESPACE),
      /** Namespaces whose RunnerSets are served. Each of them needs the rights of the ClusterRole `berth-runners`. */
      served: z.array(namespaceName).max(256).default([]),
    })
    .prefault({}),
  /** Servers of GitHub that may have any address, also a private one: `ghes.example`, or `ghes.example:8443` for another port than 443. */
  privateServers: z.array(serverName).max(64).default([]),
  /** Networks of the cluster's Pods, Services and Nodes. The program connects to none of them, except to `privateServers`. */
  clusterCIDRs: z
    .array(z.union([z.cidrv4(), z.cidrv6()]))
    .max(256)
    .default([]),
  /** Values of the operator under the same keys. The program needs them to count the places that hosts have for VMs. */
  defaults: z.strictObject(HARDWARE_DEFAULTS).prefault({}),
  diskRequestRatio: DISK_REQUEST_RATIO,
  vm_shared_disk_enabled: z.boolean().default(false),
  metrics: z
    .strictObject({
      /** Address to listen on: `HOST:PORT`, or `:PORT` for all addresses. */
      address: z.string().default(':9443'),
      ...certificateFields(['berth-runners.berth-system.svc', 'localhost']),
    })
    .refine(areFilesTogether, FILES_TOGETHER)
    .prefault({}),
  ...LED_PROGRAM_FIELDS,
});

export type RunnersConfig = z.infer<typeof configSchema>;

/**
 * Reads and checks the file. Without a file, returns the defaults.
 * @throws ConfigError when the file cannot be read or is not valid; the error lists every mistake.
 */
export function loadConfig(path: string | undefined): RunnersConfig {
  return checkConfig(configSchema, path === undefined ? {} : readConfig(path), path ?? 'configuration');
}
