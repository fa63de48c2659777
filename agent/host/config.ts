/** The agent's configuration: one YAML file, checked as a whole at start, so that a person sees every mistake at once. */
import { realpathSync } from 'node:fs';
import { isIP } from 'node:net';
import { basename, dirname, join, relative, resolve } from 'node:path';
import * as z from 'zod';
import { checkConfig, ConfigError, readConfig } from '../../base/config.ts';
import { isMissing, messageOf } from '../../base/errors.ts';
import { isHostName } from '../../api/v1alpha1/names.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import { portRulesSchema } from '../../api/v1alpha1/reservable.ts';
import { networkSchema } from './network.ts';
import { clusterNetworks } from '../network/reach.ts';

/** The API server refuses to sign a certificate for less (422 on `expirationSeconds`). */
const SHORTEST_CERTIFICATE_SECONDS = 600;
/** The agent asks for this life of a certificate unless another one is configured; the signer may give less. */
const CERTIFICATE_SECONDS = 30 * 24 * 3600;
/** The lifetime of a Node's Lease: after it the control plane may think the host gone. */
const FENCE_AFTER_SECONDS = 40;
/** A fault is to be reported within 5 s: two checks and the time that they take. */
const NETWORK_CHECK_SECONDS = 2;

/** Below are people, system users, and the users that systemd makes as it needs them (61184–65519). */
const FIRST_MACHINE_USER = 65_536;
/** Some programs take larger numbers for negative ones. */
const LAST_MACHINE_USER = 2 ** 31 - 1;
/** The images' reader and one machine. */
const LEAST_MACHINE_USERS = 2;

const MOVED_CIDRS =
  'write these networks as clusterCIDRs at the top level of the file. Images are then fetched from them only where images.registries names the server';

const nodeName = z
  .string()
  .refine(isHostName, 'a lower-case DNS label of at most 63 characters, such as "mac1"');
const address = z.string().refine((text) => isIP(text) !== 0, 'an IP address that the API server can reach');
const tag = z
  .string()
  .max(63)
  .regex(/^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$/, 'letters, digits, "-", "_" and "."');
const path = z.string().min(1);
const bytes = z.string().transform((text, context) => {
  try {
    return Number(parseQuantity(text));
  } catch (error) {
    context.addIssue({ code: 'custom', message: messageOf(error) });
    return z.NEVER;
  }
});
const certificateSeconds = z.int().min(SHORTEST_CERTIFICATE_SECONDS).default(CERTIFICATE_SECONDS);

const registry = z.strictObject({
  /** As in references: `registry.example:5000`. */
  host: z.string().regex(/^[a-z0-9.-]+(:\d{1,5})?$/, 'a host name, with a port where it has one'),
  /** PEM, in place of the public authorities. */
  caFile: path.optional(),
  plainHttp: z.boolean().default(false),
  /** A docker config, used for the cluster's own image storage only. */
  credentialsFile: path.optional(),
});

export const configSchema = z
  .strictObject({
    /** Name of the Node, and in the identity `system:node:NAME`. */
    nodeName,
    dataDirectory: path,
    /** Used as it is, for clusters without a signer for nodes; weaker, since nothing holds such an identity to its own Node. */
    kubeconfig: path.optional(),
    /** Used once, to join; what is used afterwards lies in the data directory. */
    bootstrapKubeconfig: path.optional(),
    /** Published as the Node's InternalIP; the API server calls the agent there. */
    address,
    kubelet: z
      .strictObject({
        /** 0: a free port. */
        port: z.int().min(0).max(65_535).default(0),
        /** Where it listens; `address` when absent. Another one where that is translated on the way here. */
        listenAddress: z.string().optional(),
        /** Authority of the API server's client certificate; without it callers are checked by TokenReview alone. */
        clientCAFile: path.optional(),
      })
      .prefault({}),
    certificates: z
      .strictObject({ clientSeconds: certificateSeconds, servingSeconds: certificateSeconds })
      .prefault({}),
    network: networkSchema
      .and(
        z.looseObject({ checkIntervalSeconds: z.number().min(0.05).max(60).default(NETWORK_CHECK_SECONDS) }),
      )
      .refine((network) => !('clusterCIDRs' in network), { path: ['clusterCIDRs'], message: MOVED_CIDRS }),
    /** Which ports of this host machines may reserve; the agent's own (`kubelet.port`) never. The operator has the same setting. */
    ports: portRulesSchema,
    images: z
      .strictObject({
        /** Folders below which files may be used as images. */
        sharedRoots: z.array(path).max(16).default([]),
        allowLoopbackHttp: z.boolean().default(false),
        /** What some registries need, the cluster's own storage, and servers of images within `clusterCIDRs`. Others need no entry here. */
        registries: z.array(registry).max(64).default([]),
        /** What all images together may take; without it what the disk holds. */
        budget: bytes.optional(),
        /** Kept free on the disk, since machines' disks grow: images beyond are removed or not fetched, and no more VMs placed here. */
        minimumFree: bytes.prefault('2Gi'),
        /** Where the cluster's image storage is a folder: where that is on this host. */
        storageFolder: path.optional(),
      })
      .prefault({}),
    machines: z
      .strictObject({
        /**
         * Numbers of users and groups, one for each machine, where the agent is root; the first is that of programs that
         * read images. The default lies above what distributions give to containers (up to 600100000) and systemd to
         * its own (up to 1879048191).
         */
        users: z
          .strictObject({
            first: z.int().min(FIRST_MACHINE_USER).max(LAST_MACHINE_USER).default(1_900_000_000),
            count: z.int().min(LEAST_MACHINE_USERS).max(LAST_MACHINE_USER).default(10_000),
          })
          .refine(({ first, count }) => first + count - 1 <= LAST_MACHINE_USER, {
            message: `first + count is beyond ${LAST_MACHINE_USER}`,
          })
          .prefault({}),
      })
      .prefault({}),
    /** Kept for the host itself, taken from what the Node offers. */
    reserved: z
      .strictObject({ cpu: z.number().min(0).default(0), memory: bytes.prefault('512Mi') })
      .prefault({}),
    /**
     * What the Node offers to machines at most. For an agent in a Pod: what the Pod asks its own node for, so that the
     * same memory is not promised by two Nodes.
     */
    offered: z.strictObject({ cpu: z.number().positive().optional(), memory: bytes.optional() }).prefault({}),
    clusterCIDRs: clusterNetworks.default([]),
    /** Jobs of Images and ImageCacheEntries that are done at once; the others wait. Each reads and writes a disk, and a registry's line. */
    tasksAtOnce: z.int().min(1).max(64).default(4),
    cpuOvercommit: z.number().min(1).max(64).default(1),
    /** Guests of another architecture than the machine's own run emulated. */
    architecture: z.enum(['amd64', 'arm64']).optional(),
    tags: z.array(tag).max(32).default([]),
    fenceAfterSeconds: z.int().min(5).max(600).default(FENCE_AFTER_SECONDS),
    logLevel: z.enum(['trace', 'debug', 'info', 'warn', 'error']).default('info'),
  })
  .refine((config) => (config.kubeconfig === undefined) !== (config.bootstrapKubeconfig === undefined), {
    path: ['bootstrapKubeconfig'],
    message: 'exactly one of bootstrapKubeconfig and kubeconfig is needed',
  });

export type AgentConfig = z.infer<typeof configSchema>;

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Reads and checks a configuration file; relative paths in it count from its own folder. Settings that differ from host to host
 * may come from the environment (BERTH_NODE_NAME, BERTH_ADDRESS) where the file leaves it out: a DaemonSet has one file
 * for all. Root must name the network's driver; for everybody else there is but one.
 *
 * @throws ConfigError
 */
export function loadConfig(
  file: string,
  environment: Environment = process.env,
  isRoot = process.getuid?.() === 0,
): AgentConfig {
  const document = withDriver(withEnvironment(readConfig(file), environment), isRoot);
  const config = withAbsolutePaths(checkConfig(configSchema, document, file), dirname(resolve(file)));
  const mistakes = sharedRootMistakes(config);
  if (mistakes.length > 0) {
    throw new ConfigError(file, mistakes);
  }
  return config;
}

/** Names of Kubernetes nodes may have dots, which a host's may not: its name is a label's value and a certificate's. */
function withEnvironment(document: unknown, environment: Environment): unknown {
  if (typeof document !== 'object' || Array.isArray(document)) {
    return document;
  }
  const { BERTH_NODE_NAME: name, BERTH_ADDRESS: host } = environment;
  return {
    ...(name === undefined ? {} : { nodeName: name.replaceAll('.', '-') }),
    ...(host === undefined ? {} : { address: host }),
    ...document,
  };
}

/** `nat` needs root. Root has the choice, and with `user` guests that it did not choose would reach too much. */
function withDriver(document: unknown, isRoot: boolean): unknown {
  if (!isObject(document)) {
    return document;
  }
  const { network = {} } = document;
  return { ...document, network: isRoot || !isObject(network) ? network : { driver: 'user', ...network } };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function withAbsolutePaths(config: AgentConfig, folder: string): AgentConfig {
  const absolute = (path: string): string => resolve(folder, path);
  return {
    ...config,
    dataDirectory: absolute(config.dataDirectory),
    ...(config.kubeconfig === undefined ? {} : { kubeconfig: absolute(config.kubeconfig) }),
    ...(config.bootstrapKubeconfig === undefined
      ? {}
      : { bootstrapKubeconfig: absolute(config.bootstrapKubeconfig) }),
    kubelet: {
      ...config.kubelet,
      ...(config.kubelet.clientCAFile === undefined
        ? {}
        : { clientCAFile: absolute(config.kubelet.clientCAFile) }),
    },
    images: absoluteImages(config.images, absolute),
  };
}

function absoluteImages(
  images: AgentConfig['images'],
  absolute: (path: string) => string,
): AgentConfig['images'] {
  const { sharedRoots, storageFolder, registries } = images;
  return {
    ...images,
    sharedRoots: sharedRoots.map(absolute),
    ...(storageFolder === undefined ? {} : { storageFolder: absolute(storageFolder) }),
    registries: registries.map(({ caFile, credentialsFile, ...rest }) => ({
      ...rest,
      ...(caFile === undefined ? {} : { caFile: absolute(caFile) }),
      ...(credentialsFile === undefined ? {} : { credentialsFile: absolute(credentialsFile) }),
    })),
  };
}

/**
 * Folders whose files anybody may use as images must hold nothing of the agent: its keys and other people's disks lie beside. One text
 * for each shared root that holds, or lies in, a folder of the agent's own; links are followed.
 */
function sharedRootMistakes({ dataDirectory, images }: AgentConfig): string[] {
  const { sharedRoots, storageFolder } = images;
  const own: [string, string][] = [
    ['dataDirectory', dataDirectory],
    ...(storageFolder === undefined ? [] : [['images.storageFolder', storageFolder] as [string, string]]),
  ];
  return sharedRoots.flatMap((root) =>
    own
      .filter(
        ([, folder]) => holds(realPath(root), realPath(folder)) || holds(realPath(folder), realPath(root)),
      )
      .map(
        ([setting, folder]) =>
          `images.sharedRoots: ${root} and ${setting} (${folder}) overlap: whoever may make Images could read what the agent keeps there`,
      ),
  );
}

function holds(folder: string, path: string): boolean {
  const way = relative(folder, path);
  return way !== '..' && !way.startsWith('../');
}

/** A folder that does not exist yet will be made below one that does. */
function realPath(path: string): string {
  try {
    return realpathSync(path);
  } catch (error) {
    if (!isMissing(error) || dirname(path) === path) {
      throw error;
    }
    return join(realPath(dirname(path)), basename(path));
  }
}
