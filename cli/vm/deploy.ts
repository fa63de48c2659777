/**
 * Deploys VMs. If a deployment fails, the command deletes the VM, because a script might not know the name of the VM. Until the deployment
 * ends, the VM has the annotation `berth.dev/answer-by`. With this annotation, the operator deletes the VM if the command is killed during
 * the deployment.
 */
import { conditionOf } from '../../api/http/conditions.ts';
import { progressOf, settledState } from '../../api/http/deployment.ts';
import { timeoutMinutes } from '../../api/http/vmspec.ts';
import { ANSWER_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { undefinedIf } from '../../base/errors.ts';
import { isConflict, isNotFound, unlessMissing } from '../../kube/errors.ts';
import { follow } from '../../kube/follow.ts';
import { repeated } from '../../kube/repeated.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import { CommandError, described, EXIT, type ExitCode } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { createNamed } from '../objects/create.ts';
import { type FileFlag, fileIn } from '../objects/fileflag.ts';
import { listingOf } from '../objects/kind.ts';
import { print } from '../output.ts';
import { progressLine } from '../progress.ts';
import { estimator } from '../remaining.ts';
import type { Terminal } from '../terminal.ts';
import { bodyOf, type DeployFlags, inFlags, vmFrom } from './body.ts';
import { VM_KIND } from './kind.ts';

/**
 * Normally the command keeps or deletes the VM at the time limit of its deployment. If the command does neither, the operator deletes the VM
 * this many milliseconds later. The clocks of this computer and of the operator can differ by less than that.
 */
const ANSWER_MILLISECONDS = 60_000;
/** Time limit for the deletion of the VM after a failure. If the API server does not answer, the operator deletes the VM later. */
const LAST_WRITE_MILLISECONDS = 10_000;

const EXIT_BY_CODE: Readonly<Record<number, ExitCode>> = { 404: EXIT.notFound, 504: EXIT.noAnswer };

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
    const { createFromFile } = await import('../objects/fromfile.ts');
    await createFromFile(terminal, globals, VM_KIND, file);
    return;
  }
  const body = bodyOf(name, flags);
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const vm = await createVM(cluster, vmFrom(body, flags, { namespace }), terminal.signal);
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
  const minutes = timeoutMinutes(body);
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const answerBy = Date.now() + minutes * 60_000 + ANSWER_MILLISECONDS;
    const late = AbortSignal.timeout(minutes * 60_000);
    const signal = AbortSignal.any([terminal.signal, late]);
    const created = await createVM(cluster, vmFrom(body, flags, { namespace, answerBy }), signal);
    const latest = { vm: created };
    const progress = progressLine(terminal);
    const estimate = estimator();
    try {
      await untilRunning(cluster, latest, { signal, onVersion: (vm) => progress.show(lineOf(vm, estimate)) });
      latest.vm = await keep(cluster, latest.vm, signal);
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

async function createVM(cluster: Cluster, vm: ReturnType<typeof vmFrom>, signal: AbortSignal): Promise<VM> {
  try {
    return await createNamed(cluster, VMS, vm, { signal });
  } catch (error) {
    throw inFlags(error);
  }
}

/**
 * Follows the VM until it runs. `latest` receives the last known version of the VM.
 *
 * @throws CommandError when the VM will not run; the signal's reason when the signal aborts.
 */
async function untilRunning(
  { client, watches }: Cluster,
  latest: { vm: VM },
  { signal, onVersion }: { signal: AbortSignal; onVersion: (vm: VM) => void },
): Promise<void> {
  const { metadata: from } = latest.vm;
  for await (const version of follow<VM>({ client, watches, type: VMS, from, signal })) {
    const readAgain = async () => await unlessMissing(client.get(VMS, refOf(version), { signal }));
    const { vm, state } = await settledState(version, { waitFor: 'running' }, readAgain, signal);
    latest.vm = vm;
    if (state === 'done') {
      return;
    }
    onVersion(vm);
    if (state !== 'waiting') {
      throw new CommandError(state.message, EXIT_BY_CODE[state.code] ?? EXIT.failed);
    }
  }
  throw deleted(latest.vm);
}

/**
 * Removes the annotation `berth.dev/answer-by`, so that the operator does not delete the VM. Returns the new version of the VM. Repeats the
 * request while the API server does not answer, because the VM already runs and must not be deleted for this.
 *
 * @throws CommandError when somebody has deleted the VM; ApiError; CredentialError; the signal's reason when the signal aborts.
 */
async function keep({ client }: Cluster, vm: VM, signal: AbortSignal): Promise<VM> {
  const patch = { metadata: { uid: vm.metadata.uid, annotations: { [ANSWER_BY_ANNOTATION]: null } } };
  const write = async () => await client.mergePatch<VM>(VMS, refOf(vm), patch, { signal });
  const kept = await undefinedIf((error) => isNotFound(error) || isConflict(error), repeated(write, signal));
  if (kept === undefined || kept.metadata.deletionTimestamp !== undefined) {
    throw deleted(vm);
  }
  return kept;
}

function deleted({ metadata }: VM): CommandError {
  return new CommandError(`VM ${metadata.name} was deleted before it ran`);
}

/** Deletes the VM, and returns a sentence about the result. Never rejects. */
async function removeFailed({ client }: Cluster, vm: VM): Promise<string> {
  const { name, uid, annotations = {} } = vm.metadata;
  try {
    const signal = AbortSignal.timeout(LAST_WRITE_MILLISECONDS);
    await client.delete(VMS, refOf(vm), { uid, signal });
    return `VM ${name} was deleted`;
  } catch (error) {
    return isConflict(error)
      ? `VM ${name} was deleted`
      : `VM ${name} could not be deleted (${described(error).message}). The operator deletes it at ${annotations[ANSWER_BY_ANNOTATION]}`;
  }
}

/**
 * Returns the error for the user. `left` is the sentence about the deletion. `minutes` is the time limit if the deployment ended at this
 * limit. Otherwise `minutes` is undefined.
 */
function failureOf(
  error: unknown,
  vm: VM,
  { left, minutes }: { left: string; minutes: number | undefined },
): CommandError {
  const { name } = vm.metadata;
  if (minutes !== undefined) {
    const limit = minutes === 1 ? '1 minute' : `${minutes} minutes`;
    return new CommandError(
      `VM ${name} did not run within ${limit}. ${left}. The VM waited for: ${progressOf(vm)}`,
      EXIT.noAnswer,
    );
  }
  const { message, exitCode } = described(error);
  return new CommandError(message.includes(left) ? message : `${message}. ${left}`, exitCode);
}

/** Returns a line about the current work of the host. If the VM has no host yet, the line says why. */
export function lineOf({ metadata, status = {} }: VM, estimate: ReturnType<typeof estimator>): string {
  const { progress, progressPercent: percent, phase = 'Pending' } = status;
  const scheduled = conditionOf({ status }, 'Scheduled');
  const waiting = scheduled?.status === 'False' ? scheduled.message : '';
  const work = progress === undefined || percent === undefined ? progress : estimate(percent, progress);
  return `${metadata.name}: ${work ?? (waiting || phase)}`;
}

function refOf({ metadata: { name, namespace = '' } }: VM): { name: string; namespace: string } {
  return { name, namespace };
}
