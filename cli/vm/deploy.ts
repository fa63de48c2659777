/**
 * Deploys VMs. If a deployment fails, the command deletes the VM, because a script might not know the name of the VM. Until the deployment
 * ends, the VM has a time in `spec.aliveUntil`. At this time, the operator deletes the VM if the command is killed during the deployment.
 */
import { join } from 'node:path';
import { InvalidArgumentError } from 'commander';
import { discard, lateMessage, untilDeployed, withDeployLife } from '../../actions/deploy.ts';
import { conditionOf } from '../../api/http/conditions.ts';
import { timeoutMinutes, vmOf } from '../../api/http/vmspec.ts';
import { DEPLOY_MINUTES_MAXIMUM } from '../../api/v1alpha1/fields.ts';
import { isImageReference } from '../../api/v1alpha1/reference.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { CommandError, described, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import {
  createFromFile,
  createNamed,
  type FileFlag,
  fileIn,
  inFlags as withFlags,
} from '../objects/create.ts';
import { listingOf } from '../objects/kind.ts';
import { print } from '../output.ts';
import { estimator, progressLine } from '../progress.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';
import { hostNotFound, readHosts } from '../node.ts';
import { classOf } from '../../api/v1alpha1/reasons.ts';
import { VM_KIND } from './kind.ts';
import type { VMDeployBody } from '../../api/http/vm.ts';
import { undefinedIf } from '../../base/errors.ts';
import { homeFolder } from '../../base/files.ts';
import { isForbidden } from '../../kube/errors.ts';
import {
  FLAG_BY_MACHINE_FIELD,
  type MachineFlags,
  machineRequest,
  parseKeys,
  tableValues,
} from '../objects/machineflags.ts';
import { findNamed } from '../objects/named.ts';
import { IMAGE_KIND } from '../image.ts';
import { VM_CONFIG_KIND } from '../vmconfig.ts';

export interface DeployFlags extends MachineFlags {
  readonly generateName?: boolean;
  readonly config?: string;
  readonly metadata?: Record<string, string>;
  readonly labels?: Record<string, string>;
  readonly timeout?: number;
  /** Whether the guest gets no SSH key, not even the user's own one. */
  readonly noSshKey?: boolean;
  /** Name of the VM, as scripts for another platform give it. */
  readonly name?: string;
  /** State of the VM at which the deployment ends. */
  readonly waitFor?: 'running' | 'ready';
}

/** Name of the flag for each field of the VM. */
const FLAG_BY_FIELD: Readonly<Record<string, string>> = {
  ...FLAG_BY_MACHINE_FIELD,
  'metadata.generateName': 'the name',
  'metadata.labels': '--labels',
  'spec.configRef': '--config',
  'spec.guestMetadata': '--metadata',
  'spec.deployTimeoutSeconds': '--timeout',
};

/**
 * Returns the body of a request to the HTTP API that deploys the VM.
 *
 * @throws CommandError when flags are missing or wrong, or contradict each other.
 */
export function bodyOf(name: string | undefined, flags: DeployFlags): VMDeployBody {
  check(flags);
  const { generateName, config, timeout, labels } = flags;
  return {
    ...machineRequest(flags),
    name,
    shouldGenerateName: generateName,
    vmConfig: config,
    timeout,
    vmMetadata: flags.metadata && itemsOf(flags.metadata),
    labels,
  };
}

/** @throws CommandError when flags are missing or wrong, or contradict each other. */
function check({ image, iso, config, timeout, ...keys }: DeployFlags): void {
  if (image === undefined && iso === undefined && config === undefined) {
    throw new CommandError('Name the source of the VM: --image, --iso or --config', EXIT.usage);
  }
  checkKeys(keys);
  checkTimeout(timeout);
}

/** @throws CommandError when the time limit in minutes is out of bounds. */
export function checkTimeout(timeout: number | undefined): void {
  if (timeout !== undefined && (timeout < 1 || timeout > DEPLOY_MINUTES_MAXIMUM)) {
    throw new CommandError(
      `--timeout ${timeout} must be from 1 to ${DEPLOY_MINUTES_MAXIMUM} minutes`,
      EXIT.usage,
    );
  }
}

/** @throws CommandError when a key is given and refused. */
function checkKeys({ sshKey = [], noSshKey = false }: Pick<DeployFlags, 'sshKey' | 'noSshKey'>): void {
  if (noSshKey && sshKey.length > 0) {
    throw new CommandError('Use only one of --ssh-key and --no-ssh-key', EXIT.usage);
  }
}

/** Returns the VM that the flags describe. */
export function vmFrom(body: VMDeployBody, flags: DeployFlags, namespace: string): ReturnType<typeof vmOf> {
  const vm = vmOf(body, namespace);
  return { ...vm, spec: { ...vm.spec, ...tableValues(flags) } };
}

/** Files in `~/.ssh` with the public key of the user, in the order in which they are tried. */
const OWN_KEYS = ['id_ed25519.pub', 'id_ecdsa.pub', 'id_rsa.pub'];

/**
 * Returns the public SSH keys of the VM. If the flags name no key, and neither does the VM config, the result is the user's own key, and a
 * line on the error stream names its file. A VM with an ISO, or whose VM config or Image says that the guest is not Linux, gets no key by
 * itself, because an installer would not read the key, and the VM would wait for an SSH server.
 *
 * @throws ApiError when the API server does not give the VM config or the Image.
 */
async function keysFor(
  terminal: Terminal,
  { output }: Globals,
  cluster: UserCluster,
  flags: DeployFlags,
): Promise<readonly string[] | undefined> {
  if (flags.noSshKey === true) {
    return [];
  }
  if (flags.sshKey !== undefined) {
    return flags.sshKey;
  }
  const own = readOwnKey(terminal);
  if (own === undefined || !(await takesKey(cluster, flags, terminal.signal))) {
    return undefined;
  }
  if (output === 'table' || output === 'wide') {
    terminal.err(`The guest accepts your SSH key ${own.file}. Without it: --no-ssh-key\n`);
  }
  return own.keys;
}

/** Returns the first public key of the user that can be read. Files with other content are left out, because nobody asked for them. */
export function readOwnKey({
  environment,
}: Pick<Terminal, 'environment'>): { file: string; keys: readonly string[] } | undefined {
  for (const name of OWN_KEYS) {
    const file = join(homeFolder(environment), '.ssh', name);
    try {
      return { file, keys: parseKeys(file) };
    } catch (error) {
      if (!(error instanceof InvalidArgumentError)) {
        throw error;
      }
    }
  }
  return undefined;
}

/** Reports whether the VM gets a key by itself: see {@link keysFor}. @throws ApiError as that does. */
async function takesKey(
  cluster: UserCluster,
  { iso, config, image }: DeployFlags,
  signal: AbortSignal,
): Promise<boolean> {
  if (iso !== undefined) {
    return false;
  }
  if (config === undefined) {
    return await isLinux(cluster, image, signal);
  }
  const found = await unlessHidden(findNamed(cluster, VM_CONFIG_KIND, config, signal));
  if (found === undefined) {
    return false;
  }
  const { sshAuthorizedKeys, os = 'Linux', iso: configISO, image: configImage } = found.spec;
  // An image of the flags replaces the image and the ISO of the VM config.
  const hasISO = image === undefined && configISO !== undefined;
  const takesKeys = sshAuthorizedKeys === undefined && os === 'Linux' && !hasISO;
  return takesKeys && (await isLinux(cluster, image ?? configImage, signal));
}

/** Reports whether nothing says that the image has another operating system. Only an Image can say so, and no reference. */
async function isLinux(
  cluster: UserCluster,
  image: string | undefined,
  signal: AbortSignal,
): Promise<boolean> {
  if (image === undefined || isImageReference(image)) {
    return true;
  }
  const found = await unlessHidden(findNamed(cluster, IMAGE_KIND, image, signal));
  return (found?.spec.os ?? 'Linux') === 'Linux';
}

/** Returns undefined if the object does not exist, or if the user may not read it. */
async function unlessHidden<T>(reading: Promise<T>): Promise<T | undefined> {
  return await undefinedIf((error) => error instanceof CommandError || isForbidden(error), reading);
}

/**
 * If the API server refused fields of the VM, returns an error whose message names the flags for these fields. Returns other errors
 * unchanged.
 */
export function inFlags(error: unknown): unknown {
  return withFlags(error, FLAG_BY_FIELD);
}

/**
 * Returns the metadata as an object with the field `items`, which is a list of keys with their values. In this form, a key of the metadata
 * can have any name, even `items`.
 */
function itemsOf(metadata: Record<string, string>): VMDeployBody['vmMetadata'] {
  return { items: Object.entries(metadata).map(([key, value]) => ({ key, value })) };
}

/** Conditions that tell why a VM waits, if they are False and their reason is no normal state. */
const CAUSES = ['Scheduled', 'ImageReady', 'UserDataReady'];

/** Time limit for the deletion of the VM after a failure. If the API server does not answer, the operator deletes the VM later. */
const LAST_WRITE_MILLISECONDS = 10_000;

/** Number of hosts that a message names. More would hide the message. */
const HOSTS_NAMED = 10;

interface Request {
  readonly name: string | undefined;
  readonly flags: DeployFlags;
}

/** Creates one VM from flags, or all VMs of a file, and does not wait. @throws CommandError; ApiError. */
export async function create(
  terminal: Terminal,
  globals: Globals,
  { name, flags }: Request & { readonly flags: FileFlag },
): Promise<void> {
  const file = fileIn(name, flags);
  if (file !== undefined) {
    await createFromFile(terminal, globals, VM_KIND, file);
    return;
  }
  const body = bodyOf(name, flags);
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const sshKey = await keysFor(terminal, globals, cluster, flags);
    const wanted = vmFrom(body, { ...flags, sshKey }, namespace);
    const vm = await createVM(cluster, wanted, terminal.signal);
    await print(terminal, globals.output, listingOf(VM_KIND, [vm]));
  });
}

/**
 * Creates the VM and waits until it runs.
 *
 * @throws CommandError when the VM will not run, or does not run within the time limit; ApiError.
 */
export async function deploy(terminal: Terminal, globals: Globals, { name, flags }: Request): Promise<void> {
  const body = bodyOf(name, flags);
  const { node } = flags;
  const minutes = timeoutMinutes(body);
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const late = AbortSignal.timeout(minutes * 60_000);
    const signal = AbortSignal.any([terminal.signal, late]);
    if (node !== undefined) {
      await requireHost(cluster, node, signal);
    }
    const sshKey = await keysFor(terminal, globals, cluster, flags);
    const vm = vmFrom(body, { ...flags, sshKey }, namespace);
    const created = await createVM(cluster, withDeployLife(vm, minutes), signal);
    const latest = { vm: created };
    const progress = progressLine(terminal);
    const estimate = estimator();
    const writeCause = waitingLines(terminal, globals);
    try {
      latest.vm = await untilDeployed(latest, {
        ...cluster,
        wanted: { waitFor: flags.waitFor ?? 'running' },
        aliveUntil: vm.spec.aliveUntil,
        signal,
        onVersion: (vm) => {
          progress.show(formatLine(vm, estimate));
          writeCause(vm);
        },
      });
    } catch (error) {
      // The code checks the time limit before it deletes the VM, because the time can also run out during the deletion.
      const isLate = late.aborted;
      const left = await removeFailed(cluster, latest.vm);
      throw failureOf(error, latest.vm, { left, minutes: isLate ? minutes : undefined });
    } finally {
      progress.end();
    }
    await print(terminal, globals.output, listingOf(VM_KIND, [latest.vm]));
  });
}

/**
 * Returns a function that writes a line for each cause for which a VM waits, once for each cause. It writes nothing if a person sees the
 * progress, or if a program reads the output, because it could read both streams as one.
 */
function waitingLines({ isForPeople, err }: Terminal, { output }: Globals): (vm: VM) => void {
  const isQuiet = isForPeople || (output !== 'table' && output !== 'wide');
  const causes = new Set<string>();
  return (vm) => {
    const conditions = CAUSES.map((type) => conditionOf(vm, type));
    const cause = conditions.find(
      (condition) => condition?.status === 'False' && classOf(condition.reason, 'VM') !== 'state',
    );
    if (!isQuiet && cause !== undefined && !causes.has(cause.reason)) {
      causes.add(cause.reason);
      err(`VM ${vm.metadata.name} waits: ${printable(cause.message)}\n`);
    }
  };
}

export async function createVM(
  cluster: UserCluster,
  vm: ReturnType<typeof vmFrom>,
  signal: AbortSignal,
): Promise<VM> {
  try {
    return await createNamed(cluster, VMS, vm, { signal });
  } catch (error) {
    throw inFlags(error);
  }
}

/**
 * Checks that the host exists. Without this check, the deployment would wait for the host until its time limit.
 *
 * @throws CommandError when no host has the name; ApiError, but not if the user may not read Nodes.
 */
async function requireHost(cluster: UserCluster, name: string, signal: AbortSignal): Promise<void> {
  const hosts = await undefinedIf(isForbidden, readHosts(cluster, signal));
  const names = hosts?.own.map(({ metadata }) => metadata.name) ?? [name];
  if (!names.includes(name)) {
    const known =
      names.length === 0 ? 'It has no hosts' : `Its hosts are ${names.slice(0, HOSTS_NAMED).join(', ')}`;
    throw hostNotFound(name, cluster.namespace, `. ${known}`);
  }
}

/** Deletes the VM, and returns a sentence about the result. Never rejects. */
export async function removeFailed({ client }: UserCluster, vm: VM): Promise<string> {
  const { name } = vm.metadata;
  try {
    await discard(client, vm, AbortSignal.timeout(LAST_WRITE_MILLISECONDS));
    return `VM ${name} was deleted`;
  } catch (error) {
    return `VM ${name} could not be deleted (${described(error).message}). The operator deletes it at ${vm.spec.aliveUntil}`;
  }
}

/**
 * Returns the error for the user. `left` is the sentence about the deletion. `minutes` is the time limit if the deployment ended at this
 * limit. Otherwise `minutes` is undefined.
 */
export function failureOf(
  error: unknown,
  vm: VM,
  { left, minutes }: { left: string; minutes: number | undefined },
): CommandError {
  if (minutes !== undefined) {
    return new CommandError(lateMessage(vm, minutes, left), EXIT.noAnswer);
  }
  const { message, exitCode } = described(error);
  return new CommandError(message.includes(left) ? message : `${message}. ${left}`, exitCode);
}

/** Returns a line about the current work of the host. If the VM has no host yet, the line says why. */
export function formatLine({ metadata, status = {} }: VM, estimate: ReturnType<typeof estimator>): string {
  const { progress, progressPercent: percent, phase = 'Pending' } = status;
  const scheduled = conditionOf({ status }, 'Scheduled');
  const waiting = scheduled?.status === 'False' ? scheduled.message : '';
  const work = progress === undefined || percent === undefined ? progress : estimate(percent, progress);
  return `${metadata.name}: ${work ?? (waiting || phase)}`;
}
