/**
 * Deploys VMs. If a deployment fails, the command deletes the VM, because a script might not know the name of the VM. Until the deployment
 * ends, the VM has the annotation `berth.dev/answer-by`. With this annotation, the operator deletes the VM if the command is killed during
 * the deployment.
 */
import { answerByIn, discard, lateMessage, untilDeployed } from '../../actions/deploy.ts';
import { conditionOf } from '../../api/http/conditions.ts';
import { timeoutMinutes } from '../../api/http/vmspec.ts';
import { ANSWER_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import { CommandError, described, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { createFromFile, createNamed, type FileFlag, fileIn } from '../objects/create.ts';
import { listingOf } from '../objects/kind.ts';
import { print } from '../output.ts';
import { estimator, progressLine } from '../progress.ts';
import type { Terminal } from '../terminal.ts';
import { bodyOf, type DeployFlags, inFlags, vmFrom } from './body.ts';
import { VM_KIND } from './kind.ts';

/** Time limit for the deletion of the VM after a failure. If the API server does not answer, the operator deletes the VM later. */
const LAST_WRITE_MILLISECONDS = 10_000;

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
    const answerBy = answerByIn(minutes);
    const late = AbortSignal.timeout(minutes * 60_000);
    const signal = AbortSignal.any([terminal.signal, late]);
    const created = await createVM(cluster, vmFrom(body, flags, { namespace, answerBy }), signal);
    const latest = { vm: created };
    const progress = progressLine(terminal);
    const estimate = estimator();
    try {
      latest.vm = await untilDeployed(latest, {
        ...cluster,
        wanted: { waitFor: 'running' },
        signal,
        onVersion: (vm) => progress.show(formatLine(vm, estimate)),
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

async function createVM(cluster: Cluster, vm: ReturnType<typeof vmFrom>, signal: AbortSignal): Promise<VM> {
  try {
    return await createNamed(cluster, VMS, vm, { signal });
  } catch (error) {
    throw inFlags(error);
  }
}

/** Deletes the VM, and returns a sentence about the result. Never rejects. */
async function removeFailed({ client }: Cluster, vm: VM): Promise<string> {
  const { name, annotations = {} } = vm.metadata;
  try {
    await discard(client, vm, AbortSignal.timeout(LAST_WRITE_MILLISECONDS));
    return `VM ${name} was deleted`;
  } catch (error) {
    return `VM ${name} could not be deleted (${described(error).message}). The operator deletes it at ${annotations[ANSWER_BY_ANNOTATION]}`;
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
