/** The agent's configuration in one YAML file. The whole file is checked at start, so that a person sees every mistake at once. */
import { isIP } from 'node:net';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { spawnSync } from 'node:child_process';
import { realpathSync } from 'node:fs';
import * as z from 'zod';
import { checkConfig, ConfigError, readConfig } from '../base/config.ts';
import { codeOf, isOfSystem, messageOf } from '../base/errors.ts';
import { isHostName, SIGNER_NAME } from '../api/v1alpha1/names.ts';
import { parseQuantity } from '../api/v1alpha1/quantity.ts';
import { hostPortsSchema, type PortRules } from '../api/v1alpha1/ports.ts';
import { clusterNetworks, networkSchema, reachMistakes } from './networkdriver.ts';
import { askFileServer } from './disks/fileserver.ts';
import { ownerMistakes } from './owner.ts';
import { deniedRanges } from './network/portplan.ts';

/** Shortest lifetime of a certificate, in seconds. The API server refuses a smaller `expirationSeconds` with status 422. */
const SHORTEST_CERTIFICATE_SECONDS = 600;
/** Default lifetime of a certificate that the agent requests, in seconds (30 days). The signer can issue a shorter lifetime. */
const CERTIFICATE_SECONDS = 30 * 24 * 3600;
/**
 * Default time in seconds after which a host without contact to the API server counts as cut off (fenced). A Node's Lease expires after the
 * same time.
 */
const FENCE_AFTER_SECONDS = 40;
/**
 * Default time between checks of the network, in seconds. The agent must report a fault within 5 s, so two checks must fit into these 5 s.
 */
const NETWORK_CHECK_SECONDS = 2;

/** Lowest user id that a machine can get. The ids of people, system users and dynamic users of systemd (61184–65519) are lower. */
const FIRST_MACHINE_USER = 65_536;
/** Highest user id that a machine can get. Some programs read larger ids as negative numbers. */
const LAST_MACHINE_USER = 2 ** 31 - 1;
/** Smallest number of user ids in the configured range: one for the programs that read images, and one for a machine. */
const LEAST_MACHINE_USERS = 2;

/** Path at which Homebrew installs the program `tart`. */
export const TART = '/opt/homebrew/bin/tart';

const MOVED_CIDRS =
  'Move these networks to clusterCIDRs at the top level of the file. To fetch images from a server in these networks, also name the server in images.registries';

const nodeName = z
  .string()
  .refine(isHostName, 'Use a lower-case DNS label of at most 63 characters, such as "mac1"');
const address = z
  .string()
  .refine((text) => isIP(text) !== 0, 'Use an IP address that the API server can reach');
const tag = z
  .string()
  .max(63)
  .regex(
    /^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$/,
    'Use letters, digits, "-", "_" and ".", with a letter or digit at both ends',
  );
const path = z.string().min(1);
const bytes = z.string().transform((text, context) => {
  try {
    return Number(parseQuantity(text));
  } catch (error) {
    context.addIssue({ code: 'custom', message: messageOf(error) });
    return z.NEVER;
  }
});
const signerName = z.string().regex(SIGNER_NAME, 'Use the name of a signer, such as "example.com/hosts"');
const certificateSeconds = z.int().min(SHORTEST_CERTIFICATE_SECONDS).default(CERTIFICATE_SECONDS);

const registry = z.strictObject({
  /** Host and port of the registry, as in image references: `registry.example:5000`. */
  host: z.string().regex(/^[a-z0-9.-]+(:\d{1,5})?$/, 'Use a host name, with a port if the registry has one'),
  /** PEM file with the certificate authorities that the agent trusts for this registry, instead of the public authorities. */
  caFile: path.optional(),
  plainHttp: z.boolean().default(false),
  /** Docker configuration file with credentials. The agent uses these credentials only for the cluster's own image storage. */
  credentialsFile: path.optional(),
});

export const configSchema = z
  .strictObject({
    /** Name of the Node. The agent's identity is `system:node:NAME`. */
    nodeName,
    dataDirectory: path,
    /**
     * Kubeconfig for clusters that do not sign certificates for nodes. The agent uses this kubeconfig unchanged. Unlike the user of a
     * node's certificate, the user of this kubeconfig is not restricted to this host's Node.
     */
    kubeconfig: path.optional(),
    /** Kubeconfig that the agent uses only to join. Afterwards the agent uses the credentials in the data directory. */
    bootstrapKubeconfig: path.optional(),
    /** Address that the Node publishes as InternalIP. The API server calls the agent at this address. */
    address,
    /** The only namespace that the agent serves, for a `kubeconfig` with rights in this namespace alone. Other hosts serve every namespace. */
    namespace: z.string().refine(isHostName, 'Use the name of a namespace').optional(),
    kubelet: z
      .strictObject({
        /** Port of the kubelet endpoints. 0 means any free port. */
        port: z.int().min(0).max(65_535).default(0),
        /**
         * Address on which the agent listens. The default is `address`. Set another address if the network translates addresses between the
         * API server and this host.
         */
        listenAddress: z.string().optional(),
        /**
         * File with the certificate authority that signed the API server's client certificate. Without this file, the agent checks callers
         * only by TokenReview.
         */
        clientCAFile: path.optional(),
      })
      .prefault({}),
    certificates: z
      .strictObject({
        clientSeconds: certificateSeconds,
        servingSeconds: certificateSeconds,
        /**
         * Signer of the serving certificate. The default is `kubernetes.io/kubelet-serving`. A host with a `kubeconfig` requests no
         * serving certificate by default.
         */
        servingSigner: signerName.optional(),
      })
      .prefault({}),
    network: networkSchema
      .and(
        z.looseObject({ checkIntervalSeconds: z.number().min(0.05).max(60).default(NETWORK_CHECK_SECONDS) }),
      )
      .refine((network) => !('clusterCIDRs' in network), { path: ['clusterCIDRs'], message: MOVED_CIDRS }),
    /**
     * Rules for the ports that machines may reserve, and the ranges from which the agent chooses ports. The rules
     * have the same form as in the operator's configuration. Machines can never reserve `kubelet.port`.
     */
    ports: hostPortsSchema,
    images: z
      .strictObject({
        /** Folders whose files can be used as images. */
        sharedRoots: z.array(path).max(16).default([]),
        allowLoopbackHttp: z.boolean().default(false),
        /**
         * Settings for registries that need their own certificate authority or plain HTTP, for the image storage, and for image servers
         * within `clusterCIDRs`. Other registries need no entry.
         */
        registries: z.array(registry).max(64).default([]),
        /** Largest space of all images together, in bytes. If absent, only the size of the disk limits the images. */
        budget: bytes.optional(),
        /**
         * Number of bytes that images must leave free on the host's disk, because the disks of machines grow. If less space is free, the
         * agent removes images or does not fetch more images, and the host gets no more VMs.
         */
        minimumFree: bytes.prefault('2Gi'),
        /** Folder of the cluster's image storage, as a path on this host. Absent if the storage is not a folder. */
        storageFolder: path.optional(),
      })
      .prefault({}),
    machines: z
      .strictObject({
        /** Hypervisor of this host: `tart` for macOS and Linux on Apple silicon, or `qemu`. The default is `tart` there, and else `qemu`. */
        driver: z.enum(['qemu', 'tart']).optional(),
        /** Path of the program `tart`. */
        tart: path.default(TART),
        /**
         * Whether `tart` serves the screens of VMs with `vnc.enabled`. The default is false: its VNC server listens on all addresses of the
         * host, and its password has few possible values.
         */
        screens: z.boolean().default(false),
        /**
         * Range of user ids and group ids, for an agent that runs as root. The first id is for programs that read images. Each machine gets
         * one of the other ids. By default, the range begins above the ids that Linux distributions use for containers (up to 600100000),
         * and above those of systemd (up to 1879048191).
         */
        users: z
          .strictObject({
            first: z.int().min(FIRST_MACHINE_USER).max(LAST_MACHINE_USER).default(1_900_000_000),
            count: z.int().min(LEAST_MACHINE_USERS).max(LAST_MACHINE_USER).default(10_000),
          })
          .refine(({ first, count }) => first + count - 1 <= LAST_MACHINE_USER, {
            message: `The last user (first + count - 1) must be at most ${LAST_MACHINE_USER}`,
          })
          .prefault({}),
      })
      .prefault({}),
    /**
     * Settings for Android emulators, which run beside VMs. Without this section, the host runs no emulators. Emulators need the network
     * driver `nat`.
     */
    emulator: z
      .strictObject({
        /**
         * Folder of the Android SDK, with its system images. Emulators only read this folder. The folder must not be in `/tmp` or
         * `/var/tmp`, because emulators cannot see these folders.
         */
        sdk: path,
        /** Program that runs emulators. The default is `emulator/emulator` in the SDK. */
        program: path.optional(),
      })
      .optional(),
    /** Resources that are kept for the host itself. The Node does not offer these resources. */
    reserved: z
      .strictObject({ cpu: z.number().min(0).default(0), memory: bytes.prefault('512Mi') })
      .prefault({}),
    /**
     * Upper limits of the resources that the Node offers to machines. If the agent runs in a Pod, set these values to the
     * resource requests of that Pod. Otherwise the computer would offer the same memory twice, because it has two Nodes: the agent's and
     * the kubelet's.
     */
    offered: z.strictObject({ cpu: z.number().positive().optional(), memory: bytes.optional() }).prefault({}),
    clusterCIDRs: clusterNetworks.default([]),
    /**
     * Largest number of tasks that run at the same time. A task is the work of one Job, such as an image import. The number is limited,
     * because each task uses the disk and the bandwidth of a registry.
     */
    tasksAtOnce: z.int().min(1).max(64).default(4),
    cpuOvercommit: z.number().min(1).max(64).default(1),
    /** Architecture of guests. If this architecture differs from that of the host, the guests are emulated. */
    architecture: z.enum(['amd64', 'arm64']).optional(),
    tags: z.array(tag).max(32).default([]),
    fenceAfterSeconds: z.int().min(5).max(600).default(FENCE_AFTER_SECONDS),
    logLevel: z.enum(['trace', 'debug', 'info', 'warn', 'error']).default('info'),
  })
  .refine((config) => (config.kubeconfig === undefined) !== (config.bootstrapKubeconfig === undefined), {
    path: ['bootstrapKubeconfig'],
    message: 'Set exactly one of bootstrapKubeconfig and kubeconfig',
  })
  .refine(({ kubeconfig, namespace }) => kubeconfig !== undefined || namespace === undefined, {
    path: ['namespace'],
    message: 'Only a host with a kubeconfig can serve one namespace alone. Give other hosts to a namespace',
  });

export type AgentConfig = z.infer<typeof configSchema>;

/** Returns the configured rules for reserved host ports. The rules also deny `kubelet.port`, so no machine can reserve the agent's port. */
export function portRules({ ports, kubelet }: AgentConfig): PortRules {
  return kubelet.port === 0 ? ports : { ...ports, denied: [...ports.denied, String(kubelet.port)] };
}

/**
 * Reads and checks a configuration file. Relative paths are relative to the folder of the file. If the file does not set `nodeName`, the
 * environment variable BERTH_NODE_NAME is used. If the file does not set `address`, BERTH_ADDRESS is used. A DaemonSet needs these
 * variables, because it has one file for all hosts. If the agent runs as root, the file must name the network driver. If the agent does not
 * run as root, the default driver is `user`.
 *
 * @throws ConfigError when the file cannot be read or has mistakes.
 */
export function loadConfig(
  file: string,
  environment: Environment = process.env,
  isRoot = process.getuid?.() === 0,
): AgentConfig {
  const document = withNetwork(withEnvironment(readConfig(file), environment), isRoot);
  const config = withAbsolutePaths(checkConfig(configSchema, document, file), dirname(resolve(file)));
  const mistakes = [
    ...ownerMistakes(config),
    ...driverMistakes(config),
    ...reachMistakes(config.network, config.clusterCIDRs),
    ...folderMistakes(config),
    ...deniedRanges(config.ports, portRules(config)),
  ];
  if (mistakes.length > 0) {
    throw new ConfigError(file, mistakes);
  }
  return config;
}

function withAbsolutePaths(config: AgentConfig, folder: string): AgentConfig {
  const { kubelet, images, emulator, machines } = config;
  const absolute = (path: string): string => resolve(folder, path);
  const absoluteIfSet = (path: string | undefined): string | undefined => path && absolute(path);
  return {
    ...config,
    dataDirectory: absolute(config.dataDirectory),
    kubeconfig: absoluteIfSet(config.kubeconfig),
    bootstrapKubeconfig: absoluteIfSet(config.bootstrapKubeconfig),
    kubelet: { ...kubelet, clientCAFile: absoluteIfSet(kubelet.clientCAFile) },
    emulator: emulator && { sdk: absolute(emulator.sdk), program: absoluteIfSet(emulator.program) },
    machines: { ...machines, tart: absolute(machines.tart) },
    images: {
      ...images,
      sharedRoots: images.sharedRoots.map(absolute),
      storageFolder: absoluteIfSet(images.storageFolder),
      registries: images.registries.map(({ caFile, credentialsFile, ...rest }) => ({
        ...rest,
        caFile: absoluteIfSet(caFile),
        credentialsFile: absoluteIfSet(credentialsFile),
      })),
    },
  };
}

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Adds the Node's name and address from the environment variables. Dots in the name become dashes: Kubernetes allows dots in a Node's name,
 * but Berth requires a DNS label.
 */
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

/** Returns the driver of machines: the configured one, or the one for this computer. */
export function machineDriver(machines: Partial<AgentConfig['machines']>): 'qemu' | 'tart' {
  return machines.driver ?? (process.platform === 'darwin' && process.arch === 'arm64' ? 'tart' : 'qemu');
}

/**
 * Sets the default network driver: `vmnet` for machines of the driver tart, and `user` if the agent does not run as root, because the driver
 * `nat` needs root. There is no default for root: with `user`, guests can reach more than an administrator might expect.
 */
function withNetwork(document: unknown, isRoot: boolean): unknown {
  if (!isObject(document)) {
    return document;
  }
  const { network = {}, machines = {} } = document;
  const chosen = isObject(machines) ? machines['driver'] : undefined;
  const isTart = (chosen ?? machineDriver({})) === 'tart';
  const driver = isTart ? 'vmnet' : isRoot ? undefined : 'user';
  return {
    ...document,
    network: driver === undefined || !isObject(network) ? network : { driver, ...network },
  };
}

/** Returns a message if the driver of machines and the network driver do not fit. Only the program tart makes the networks vmnet and softnet. */
function driverMistakes({ machines, network, architecture }: AgentConfig): string[] {
  const isTart = machineDriver(machines) === 'tart';
  const fault = isTart
    ? `machines.driver is tart, which needs vmnet or softnet, not ${network.driver}`
    : `${network.driver} needs machines.driver tart. Use nat or user`;
  return [
    ...(isTart === ['vmnet', 'softnet'].includes(network.driver) ? [] : [`network.driver: ${fault}`]),
    ...(isTart && architecture === 'amd64'
      ? ['architecture: machines.driver is tart, which runs arm64 guests only']
      : []),
    ...(!isTart && machines.screens
      ? ['machines.screens: true is for machines.driver tart. Other drivers serve screens always']
      : []),
  ];
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/**
 * Time limit in milliseconds for the answer of a folder's file server. The limit is short, because the start of the agent waits for each
 * folder.
 */
const ANSWER_MILLISECONDS = 5_000;

interface Folders {
  dataDirectory: string;
  images: { sharedRoots: readonly string[]; storageFolder?: string | undefined };
  emulator?: { sdk: string } | undefined;
}

/**
 * Returns a message for each folder of `images.sharedRoots`, and for the Android SDK, if the folder overlaps with a folder of the agent.
 * Every user can use files of the shared roots as images, and each emulator can read the SDK. But the agent's folders contain its keys and
 * the disks of VMs, so others must not read them. The function follows symbolic links, except those to folders whose file server is down.
 */
export function folderMistakes(
  { dataDirectory, images, emulator }: Folders,
  answerMilliseconds = ANSWER_MILLISECONDS,
): string[] {
  const { sharedRoots, storageFolder } = images;
  const own = { dataDirectory, ...(storageFolder && { 'images.storageFolder': storageFolder }) };
  const known = new Map<string, string>();
  const real = (path: string): string => {
    const resolved = known.get(path) ?? (isSilent(path, answerMilliseconds) ? path : realPath(path));
    known.set(path, resolved);
    return resolved;
  };
  const mistakes = (setting: string, folder: string, consequence: string): string[] =>
    Object.entries(own)
      .filter(([, other]) => overlap(real(folder), real(other)))
      .map(([name, other]) => `${setting}: ${folder} and ${name} (${other}) overlap. ${consequence}`);
  const shared = 'Because of this, users who make Images could read files of the agent';
  return [
    ...sharedRoots.flatMap((root) => mistakes('images.sharedRoots', root, shared)),
    ...(emulator === undefined
      ? []
      : mistakes('emulator.sdk', emulator.sdk, 'Because of this, emulators could read files of the agent')),
  ];
}

function overlap(one: string, other: string): boolean {
  return holds(one, other) || holds(other, one);
}

function holds(folder: string, path: string): boolean {
  const way = relative(folder, path);
  return way !== '..' && !way.startsWith('../');
}

/**
 * Reports whether the file server of a folder does not answer in time. A program asks the server, because a call of Node.js for a folder of a
 * dead server never returns, so the agent would not start.
 */
function isSilent(path: string, answerMilliseconds: number): boolean {
  const limits = { timeout: answerMilliseconds, killSignal: 'SIGKILL', stdio: 'ignore' } as const;
  const { program, parameters } = askFileServer(path);
  return codeOf(spawnSync(program, parameters, limits).error) === 'ETIMEDOUT';
}

/**
 * Returns the path with symbolic links resolved. If the last part of the path does not exist, or its file server is faulty, only the part
 * before it is resolved.
 */
function realPath(path: string): string {
  try {
    return realpathSync(path);
  } catch (error) {
    if (!isOfSystem(error) || dirname(path) === path) {
      throw error;
    }
    return join(realPath(dirname(path)), basename(path));
  }
}
