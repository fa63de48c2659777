/** Prepares the seed of a machine for its start: the documents for the guest and the files for the hypervisor. */
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { USER_DATA_CONDITION } from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { PodStatus } from '../../kube/core.ts';
import { condition, type SaidCondition } from '../../kube/podstatus.ts';
import { makeDocuments, seedDocuments, writeSeedDocuments } from '../seed/documents.ts';
import { hasSeed, type SeedFiles, writeSeedFiles } from '../seed/files.ts';
import { userDataNotice, withoutByteOrderMark } from '../seed/format.ts';
import type { Host } from './host.ts';
import { type MachinePhase, needed, type Operation, type Runtime } from './machine.ts';
import { grantedSize } from './resize.ts';

/** The seed of a start. */
export interface Seed {
  /** Files for the hypervisor. Undefined if the machine has no seed disk. */
  files: SeedFiles | undefined;
  /** Text that tells why the guest may ignore its user data. Undefined if nothing is wrong with it. */
  notice: string | undefined;
}

/**
 * Writes the documents and files of a machine's seed into the machine's folder, with the values of this start.
 *
 * @throws ReasonedError when the Secret with the user data cannot be used.
 */
export async function prepareSeed(
  host: Host,
  { record, folder }: Runtime,
  { pod, desired }: Operation,
): Promise<Seed> {
  const machine = needed(record.machine);
  const userData = await userDataOf(host, machine, folder);
  const documents = makeDocuments(machine, {
    host: pod?.spec.nodeName ?? '',
    ...grantedSize(record, needed(desired)),
    userData: userData && withoutByteOrderMark(userData),
  });
  const [files] = await Promise.all([
    hasSeed(machine) ? writeSeedFiles(folder.path, documents) : undefined,
    writeSeedDocuments(folder.path, documents),
  ]);
  return { files, notice: userData === undefined ? undefined : userDataNotice(userData) };
}

/**
 * Returns the user data of a machine. If the Secret cannot be read, but an earlier start of the machine had user data, the result is that
 * data. So the machine does not depend on the Secret after its first start.
 */
async function userDataOf(
  host: Host,
  { userData, userDataSecret, vm: { namespace } }: Machine,
  folder: Runtime['folder'],
): Promise<string | undefined> {
  if (userDataSecret === undefined) {
    return userData;
  }
  try {
    return await host.userData({ namespace, ...userDataSecret });
  } catch (error) {
    const earlier = await seedDocuments(folder.path);
    if (earlier?.userData === undefined) {
      throw error;
    }
    return earlier.userData;
  }
}

const USER_DATA_REASONS: ReadonlySet<Reason | undefined> = new Set([
  'SecretNotFound',
  'SecretNotRead',
  'UserDataInvalid',
  'UserDataSecretRefused',
]);

/** Returns whether this reason of a failed step means that the user data of a machine could not be fetched. */
function isOfUserData(reason: Reason | undefined): boolean {
  return USER_DATA_REASONS.has(reason);
}

function hasUserData({ userData, userDataSecret }: Machine): boolean {
  return userData !== undefined || userDataSecret !== undefined;
}

/**
 * Returns a list with the condition `berth.dev/UserData`. The list is empty if the machine has no user data. The list is also empty before
 * the first start of the machine, unless the user data could not be fetched.
 */
export function userDataConditions({
  record,
  trouble,
}: Pick<Runtime, 'record' | 'trouble'>): SaidCondition<Reason>[] {
  const { machine, seeded, seedNotice, startedWith } = record;
  if (machine === undefined || !hasUserData(machine)) {
    return [];
  }
  // The host reads the user data after it has made the disk. Before that, it reads other Secrets.
  if (record.created && trouble !== undefined && isOfUserData(trouble.reason)) {
    return [condition(USER_DATA_CONDITION, false, trouble.reason, trouble.message)];
  }
  if (seeded !== true || startedWith === undefined) {
    return [];
  }
  const reason = seedNotice === undefined ? 'Delivered' : 'DeliveredWithNotice';
  return [condition(USER_DATA_CONDITION, true, reason, seedNotice)];
}

/**
 * Returns the reason why the image or the user data of a machine cannot be fetched yet. Returns undefined if there is no such reason. A
 * reason about user data is returned only while the Pod is Pending. If the container of a running Pod showed such a reason, an operator of
 * an earlier release would take this as a sign that the machine has run.
 */
export function obstacle(
  reason: Reason | undefined,
  phase: MachinePhase,
  podPhase: PodStatus['phase'],
): Reason | undefined {
  const isUserData = podPhase === 'Pending' && isOfUserData(reason);
  return phase === 'Pulling' || isUserData ? reason : undefined;
}
