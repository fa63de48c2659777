/** VMs that commands make for a job: they live while somebody prolongs their life, and are used over SSH. */
import { join } from 'node:path';
import { type Claim, claimVM, membersBy, untilUsable } from '../../actions/claim.ts';
import { discard, lateMessage, untilRunning } from '../../actions/deploy.ts';
import { ActionError } from '../../actions/error.ts';
import { endOfLife, holdVM, LIFE_MILLISECONDS } from '../../actions/hold.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { repeated } from '../../kube/patience.ts';
import type { UserCluster } from '../cluster.ts';
import { CommandError, described, type ExitCode, explained, RUN_EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { estimator, progressLine } from '../progress.ts';
import type { Terminal } from '../terminal.ts';
import { createVM, formatLine } from './deploy.ts';
import { readUsername } from '../objects/create.ts';
import { GuestShell } from './guestshell.ts';
import { optionsFor, userOf } from './ssh.ts';

/** Time limit in milliseconds for the request that deletes a VM. After that, the operator deletes it. */
const DELETE_MILLISECONDS = 30_000;

/** What the work with a VM needs. */
export interface GuestJob {
  readonly terminal: Terminal;
  readonly cluster: UserCluster;
  /** Globals with the namespace of the VM. */
  readonly globals: Globals;
  /** Folder for key, host key and connection, which only this user can read. */
  readonly folder: string;
  /** File with the private key for the login. If it is undefined, the key is in the folder. */
  readonly identity: string | undefined;
  readonly user: string | undefined;
  /** Life of the VM if nobody prolongs it. */
  readonly lifeMilliseconds: number;
  readonly clock: () => number;
  /** Minutes until the VM must be Ready, and until somebody must have logged in. */
  readonly minutes: number;
}

/** Returns the job of a command in the namespace of the cluster. */
export function makeJob(
  { terminal, cluster, globals }: Pick<GuestJob, 'terminal' | 'cluster' | 'globals'>,
  rest: Pick<GuestJob, 'folder' | 'identity' | 'user' | 'minutes'> & { readonly lifeMilliseconds?: number },
): GuestJob {
  const { namespace } = cluster;
  const life = { lifeMilliseconds: LIFE_MILLISECONDS, clock: Date.now };
  return { terminal, cluster, globals: { ...globals, namespace }, ...life, ...rest };
}

/** Returns the path of the private key of a job. */
export function keyIn(folder: string): string {
  return join(folder, 'key');
}

/** Gives an error of `work` the exit code. @throws CommandError; the signal's reason when it aborts. */
export async function stage<T>(code: ExitCode, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    signal.throwIfAborted();
    throw new CommandError(described(explained(error, 'API server', 'the kubeconfig')).message, code);
  }
}

/** Creates the VM with a life. @throws CommandError when the API server refuses it; the signal's reason when it aborts. */
export async function createHeld(
  job: GuestJob,
  vm: Parameters<typeof createVM>[1],
  signal: AbortSignal,
): Promise<VM> {
  const held = { ...vm, spec: { ...vm.spec, aliveUntil: endOfLife(job) } };
  return await stage(RUN_EXIT.noVM, signal, async () => await createVM(job.cluster, held, signal));
}

/**
 * Claims a VM of the pool with a life, or makes a new one of the same template if none is ready, and tells the user.
 *
 * @throws CommandError when there is no such pool, or the API server refuses the claim; the signal's reason when it aborts.
 */
export async function claimHeld(job: GuestJob, pool: string, signal: AbortSignal): Promise<Claim> {
  const { cluster, minutes, terminal } = job;
  const { namespace } = cluster;
  const request = { namespace, pool, whenEmpty: 'deploy', minutes, signal } as const;
  const claim = await stage(RUN_EXIT.noVM, signal, async () => {
    const username = await readUsername(cluster, signal);
    const access = { ...cluster, username, members: membersBy(cluster), attempts: new Set<string>() };
    return await claimVM(access, { ...request, aliveUntil: endOfLife(job) });
  });
  tellIfCold(terminal, pool, claim);
  return claim;
}

/** Tells the user that the pool had no ready VM. */
export function tellIfCold({ err }: Pick<Terminal, 'err'>, pool: string, { vm, isCold }: Claim): void {
  if (isCold) {
    err(`No VM of pool ${pool} was ready, so VM ${vm.metadata.name} is new and boots\n`);
  }
}

/**
 * Runs `work` and prolongs the life of the VM meanwhile. The signal of `work` also aborts when the VM is lost.
 *
 * @throws errors of `work`.
 */
export async function whileHeld<T>(
  { cluster: { client }, ...life }: GuestJob,
  vm: VM,
  signal: AbortSignal,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const lost = new AbortController();
  const over = new AbortController();
  const holding = holdVM({ client, vm, ...life, signal: over.signal }).catch((error: unknown) => {
    lost.abort(new CommandError(described(error).message, RUN_EXIT.lost));
  });
  try {
    return await work(AbortSignal.any([signal, lost.signal]));
  } finally {
    over.abort();
    await holding;
  }
}

/** A VM that is used for a job. */
export interface Used {
  /** Last known version. */
  vm: VM;
  /** Claim that took the VM out of a pool. A suspended VM of a pool is Ready only after it has resumed. */
  readonly claim?: Claim;
}

/** Waits until the VM is Ready. @throws CommandError with the code for the failure; the signal's reason when it aborts. */
export async function untilReady(
  { terminal, cluster, minutes }: GuestJob,
  latest: Used,
  signal: AbortSignal,
): Promise<void> {
  const late = AbortSignal.timeout(minutes * 60_000);
  const progress = progressLine(terminal);
  const estimate = estimator();
  try {
    const wait = {
      ...cluster,
      signal: AbortSignal.any([signal, late]),
      onVersion: (vm: VM) => progress.show(formatLine(vm, estimate)),
    };
    const { claim } = latest;
    await (claim === undefined || claim.isCold
      ? untilRunning(latest, { ...wait, wanted: { waitFor: 'ready' } })
      : untilUsable(latest, claim, { ...wait, waitFor: 'ready', aliveUntil: claim.vm.spec.aliveUntil }));
  } catch (error) {
    signal.throwIfAborted();
    throw late.aborted
      ? new CommandError(lateMessage(latest.vm, minutes, 'It is not used'), RUN_EXIT.notReady)
      : new CommandError(described(error).message, codeOfFailure(error));
  } finally {
    progress.end();
  }
}

/** Returns the exit code if the VM does not become Ready. An error that is no ActionError comes from the API server. */
function codeOfFailure(error: unknown): ExitCode {
  if (!(error instanceof ActionError)) {
    return RUN_EXIT.noVM;
  }
  return error.kind === 'late' ? RUN_EXIT.notReady : RUN_EXIT.failed;
}

/** Logs in to the VM. @throws CommandError when this is not possible in time; the signal's reason when it aborts. */
export async function openShell(
  job: GuestJob,
  { metadata }: Pick<VM, 'metadata'>,
  signal: AbortSignal,
): Promise<GuestShell> {
  const { terminal, globals, folder, minutes, identity = keyIn(folder) } = job;
  const options = optionsFor(globals, metadata, { known: join(folder, 'known_hosts'), identity });
  const user = await userOf(terminal, job.user);
  const login = { name: metadata.name, user, options, folder, identity: job.identity };
  return await GuestShell.open(login, { signal, minutes });
}

/** Deletes the VM. If this is not possible, tells the user that the operator deletes it. Never rejects. */
export async function removeVM(
  { terminal, cluster }: Pick<GuestJob, 'terminal' | 'cluster'>,
  vm: VM,
): Promise<void> {
  const signal = AbortSignal.timeout(DELETE_MILLISECONDS);
  try {
    await repeated(async () => await discard(cluster.client, vm, signal), signal);
  } catch (error) {
    const { name } = vm.metadata;
    const { message } = described(error);
    terminal.err(
      `VM ${name} could not be deleted (${message}). The operator deletes it when its life is over\n`,
    );
  }
}
