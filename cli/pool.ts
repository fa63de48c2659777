/** The noun `pool`: VMPools, which keep VMs ready. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import { type Claim, claimVM, membersBy, untilUsable } from '../actions/claim.ts';
import { progressOf } from '../actions/deploy.ts';
import { notReadyMessage, notReadyReason } from '../api/http/conditions.ts';
import type { VMClaimQuery } from '../api/http/vmpool.ts';
import { VM_POOLS } from '../api/v1alpha1/resources.ts';
import { POOL_DEFAULTS, POOL_REPLICAS_MAXIMUM } from '../api/v1alpha1/poolmembers.ts';
import type { VMPool } from '../api/v1alpha1/vmpool.ts';
import { type UserCluster, withCluster } from './cluster.ts';
import { CommandError, EXIT } from './errors.ts';
import { wholeNumber } from './flags.ts';
import type { Globals } from './globals.ts';
import { addFileFlag, createFromFile, fileIn, type FileFlag, readUsername } from './objects/create.ts';
import { listingOf, type NounKind, report } from './objects/kind.ts';
import { getNamed } from './objects/named.ts';
import { addCommonVerbs } from './objects/verbs.ts';
import { print } from './output.ts';
import { progressLine } from './progress.ts';
import type { Terminal } from './terminal.ts';
import { age } from './text.ts';
import { checkTimeout, failureOf, removeFailed } from './vm/deploy.ts';
import { tellIfCold } from './vm/heldvm.ts';
import { VM_KIND } from './vm/kind.ts';

/** Default time limit of a claim in minutes, as that of a deployment. */
const TIMEOUT_MINUTES = 10;

export function addPoolCommands(noun: Command, terminal: Terminal): void {
  addCommonVerbs(noun, terminal, POOL_KIND);
  addFileFlag(noun.command('create').description('Make all pools that a file describes')).action(
    async (flags: FileFlag, command: Command) => {
      const file = fileIn(undefined, flags);
      if (file === undefined) {
        throw new CommandError('Give a file with -f', EXIT.usage);
      }
      await createFromFile(terminal, command.optsWithGlobals<Globals>(), POOL_KIND, file);
    },
  );
  noun
    .command('claim')
    .description('Take a VM out of a pool. It belongs to you then, and never returns to the pool')
    .argument('<name>', 'name of the pool')
    .addOption(
      new Option('--when-empty <behaviour>', 'if no VM is ready: deploy a new one, wait, or fail')
        .choices(['deploy', 'wait', 'fail'])
        .default('deploy'),
    )
    .option('--timeout <minutes>', 'longest wait in minutes (default: 10)', wholeNumber)
    .option('--alive-until <time>', 'RFC 3339 time after which the VM is deleted')
    .action(async (name: string, flags: ClaimFlags, command: Command) => {
      await claim(terminal, command.optsWithGlobals<Globals>(), name, flags);
    });
  noun
    .command('scale')
    .description('Set the number of VMs that a pool keeps')
    .argument('<name>', 'name of the pool')
    .argument('<replicas>', 'number of VMs', parseReplicas)
    .action(async (name: string, replicas: number, _flags: object, command: Command) => {
      await scale(terminal, command.optsWithGlobals<Globals>(), name, replicas);
    });
}

/** @throws InvalidArgumentError */
function parseReplicas(text: string): number {
  const number = wholeNumber(text);
  if (number > POOL_REPLICAS_MAXIMUM) {
    throw new InvalidArgumentError(`It must be from 0 to ${POOL_REPLICAS_MAXIMUM}.`);
  }
  return number;
}

const POOL_KIND: NounKind<VMPool> = {
  type: VM_POOLS,
  noun: 'pool',
  plural: 'pools',
  columns: [
    { header: 'NAME', value: ({ metadata }) => metadata.name },
    { header: 'WANTED', value: ({ spec }) => spec.replicas },
    { header: 'VMS', value: ({ status }) => status?.replicas },
    { header: 'READY', value: ({ status }) => status?.readyReplicas },
    { header: 'STALE', value: ({ status }) => status?.staleReplicas },
    { header: 'CLAIMED', value: ({ status }) => status?.claimedTotal },
    { header: 'REASON', value: notReadyReason },
    { header: 'AGE', value: ({ metadata }) => age(metadata.creationTimestamp) },
    { header: 'MODE', value: ({ spec }) => spec.mode ?? POOL_DEFAULTS.mode, isWide: true },
    {
      header: 'SOURCE',
      value: ({ spec: { template } }) =>
        template.spec.image ?? template.spec.iso ?? template.spec.configRef?.name,
      isWide: true,
    },
    { header: 'MESSAGE', value: notReadyMessage, isWide: true },
  ],
  itemOf: ({ metadata: { name }, spec: { replicas }, status = {} }) => ({
    name,
    wanted: replicas,
    vms: status.replicas,
    ready: status.readyReplicas,
    stale: status.staleReplicas,
    claimed: status.claimedTotal,
  }),
  isShared: false,
};

interface ClaimFlags extends Pick<VMClaimQuery, 'whenEmpty'> {
  readonly timeout?: number;
  readonly aliveUntil?: string;
}

/**
 * Claims a VM and shows it when it runs. If it does not run, the VM is deleted.
 *
 * @throws CommandError when the VM does not run in time; ActionError when the pool has no ready VM; ApiError.
 */
async function claim(
  terminal: Terminal,
  globals: Globals,
  name: string,
  { whenEmpty, aliveUntil, timeout: minutes = TIMEOUT_MINUTES }: ClaimFlags,
): Promise<void> {
  checkTimeout(minutes);
  const late = AbortSignal.timeout(minutes * 60_000);
  const signal = AbortSignal.any([terminal.signal, late]);
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const username = await readUsername(cluster, signal);
    const access = { ...cluster, username, members: membersBy(cluster), attempts: new Set<string>() };
    const request = { namespace, pool: name, whenEmpty, aliveUntil, minutes, signal };
    const claimed = await claimVM(access, request).catch((error: unknown) => {
      const text = `No VM of pool ${name} was ready within ${minutes} minutes`;
      throw error === late.reason ? new CommandError(text, EXIT.noAnswer) : error;
    });
    if (globals.output === 'table' || globals.output === 'wide') {
      tellIfCold(terminal, name, claimed);
    }
    const vm = await waitForUse(terminal, cluster, claimed, { signal, late, minutes, aliveUntil });
    await print(terminal, globals.output, listingOf(VM_KIND, [vm]));
  });
}

interface Limits {
  readonly signal: AbortSignal;
  /** Signal that aborts at the time limit of the command. */
  readonly late: AbortSignal;
  readonly minutes: number;
  readonly aliveUntil: string | undefined;
}

async function waitForUse(
  terminal: Terminal,
  cluster: UserCluster,
  claimed: Claim,
  { signal, late, minutes, aliveUntil }: Limits,
): Promise<Claim['vm']> {
  const latest = { vm: claimed.vm };
  const progress = progressLine(terminal);
  try {
    return await untilUsable(latest, claimed, {
      ...cluster,
      waitFor: 'ready',
      aliveUntil,
      signal,
      onVersion: (vm) => progress.show(`${vm.metadata.name}: ${progressOf(vm)}`),
    });
  } catch (error) {
    const isLate = late.aborted;
    const left = await removeFailed(cluster, latest.vm);
    throw failureOf(error, latest.vm, { left, minutes: isLate ? minutes : undefined });
  } finally {
    progress.end();
  }
}

async function scale(terminal: Terminal, globals: Globals, name: string, replicas: number): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { metadata } = await getNamed(cluster, POOL_KIND, name, signal);
    const { namespace = '', uid } = metadata;
    const patch = { metadata: { uid }, spec: { replicas } };
    const objects = [
      await cluster.client.mergePatch<VMPool>(VM_POOLS, { namespace, name }, patch, { signal }),
    ];
    const sentence = () => `pool ${name} keeps ${replicas} VMs`;
    await report(terminal, globals, { kind: POOL_KIND, objects, sentence });
  });
}
