/**
 * The nouns `emulator` and `emulator-config`. If Android is still booting at the time limit of a deployment, the command succeeds and keeps
 * the emulator, so that Android can finish booting. The emulator stops at the latest when its VM stops. If the emulator fails, or if the
 * user interrupts the command, the command deletes the emulator.
 */
import type { Command } from 'commander';
import { notReadyReason } from '../api/http/conditions.ts';
import { DEPLOY_MINUTES_MAXIMUM } from '../api/v1alpha1/fields.ts';
import { parseMemory, wholeNumber } from './flags.ts';
import type { Globals } from './globals.ts';
import { addCommonVerbs } from './objects/verbs.ts';
import type { Terminal } from './terminal.ts';
import type { EmulatorItem, EmulatorRequest } from '../api/http/emulator.ts';
import { emulatorItem } from '../api/http/emulatoritem.ts';
import type { Emulator } from '../api/v1alpha1/emulator.ts';
import { EMULATORS } from '../api/v1alpha1/resources.ts';
import { type NounKind, listingOf } from './objects/kind.ts';
import { type Column, print } from './output.ts';
import { age } from './text.ts';
import { emulatorOf, requireRunning, timeoutMinutes, untilBooted } from '../actions/emulator.ts';
import { ActionError } from '../actions/error.ts';
import type { Unsaved } from '../kube/objects.ts';
import { type UserCluster, withCluster } from './cluster.ts';
import { CommandError, described, EXIT, Interrupted } from './errors.ts';
import { createNamed, inFlags } from './objects/create.ts';
import { getNamed } from './objects/named.ts';
import { progressLine } from './progress.ts';
import { VM_KIND } from './vm/kind.ts';

export function addEmulatorCommands(noun: Command, terminal: Terminal): void {
  addCommonVerbs(noun, terminal, EMULATOR_KIND);
  noun
    .command('deploy')
    .description('Make an emulator on the host of a running VM, and wait until the emulator runs')
    .argument('[name]', 'name of the emulator (default: the cluster generates a name)')
    .requiredOption('--vm <name>', 'VM to which the emulator belongs')
    .option('--platform <name>', 'Android platform (default: android-36)')
    .option('--image-type <name>', 'type of the system image (default: google_apis)')
    .option('--device-profile <name>', 'device to emulate (default: pixel_9)')
    .option('-c, --cpu <number>', 'number of virtual processors (default: 2)', wholeNumber)
    .option(
      '-m, --memory <size>',
      'memory, for example 4Gi; a number without a unit is in GiB (default: 4Gi)',
      parseMemory,
    )
    .option('--config <name>', 'not supported, because Berth has no emulator configs')
    .option('--timeout <minutes>', 'longest wait in minutes (default: 5)', wholeNumber)
    .action(async (name: string | undefined, flags: EmulatorFlags, command: Command) => {
      await deploy(terminal, command.optsWithGlobals<Globals>(), { name, flags });
    });
}

/**
 * Adds the verb `list`, which always shows an empty list, because Berth has no emulator configs. Integrations call this verb before they
 * deploy an emulator.
 */
export function addEmulatorConfigCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('list')
    .alias('ls')
    .description('List emulator configs')
    .action(async (_flags, command: Command) => {
      await print(terminal, command.optsWithGlobals<Globals>().output, {
        rows: [],
        columns: [],
        itemOf: (row) => row,
        none: 'There are no emulator configs. Set the values with the flags of `berth emulator deploy`',
      });
    });
}

export const EMULATOR_KIND: NounKind<Emulator> = {
  type: EMULATORS,
  noun: 'emulator',
  plural: 'emulators',
  columns: [
    ofItem('NAME', ({ name }) => name),
    ofItem('STATUS', ({ status }) => status),
    { header: 'REASON', value: notReadyReason },
    ofItem('VM', ({ vm }) => vm),
    ofItem('NODE', ({ node }) => node),
    ofItem('IP', ({ relayIp }) => relayIp),
    ofItem('ADB', ({ relayPort }) => relayPort),
    ofItem('PLATFORM', ({ platform }) => platform),
    { header: 'AGE', value: ({ metadata }) => age(metadata.creationTimestamp) },
    { ...ofItem('TYPE', ({ imageType }) => imageType), isWide: true },
    { ...ofItem('DEVICE', ({ deviceProfile }) => deviceProfile), isWide: true },
    { ...ofItem('MESSAGE', ({ errorMessage, message }) => errorMessage ?? message), isWide: true },
  ],
  itemOf: emulatorItem,
  isShared: false,
};

function ofItem(
  header: string,
  value: (item: EmulatorItem) => string | number | undefined,
): Column<Emulator> {
  return { header, value: (emulator) => value(emulatorItem(emulator)) };
}

export interface EmulatorFlags {
  readonly vm: string;
  readonly platform?: string;
  readonly imageType?: string;
  readonly deviceProfile?: string;
  readonly cpu?: number;
  /** Memory as a quantity. */
  readonly memory?: string;
  readonly config?: string;
  readonly timeout?: number;
}

/** Name of the flag for each field of the emulator. */
const FLAG_BY_FIELD = {
  'metadata.name': 'the name',
  'spec.vmName': '--vm',
  'spec.platform': '--platform',
  'spec.imageType': '--image-type',
  'spec.device': '--device-profile',
  'spec.cpu': '--cpu',
  'spec.memory': '--memory',
};
/**
 * Time limit for the request that creates the emulator. An interrupt by the user does not end this request. Otherwise the command could not
 * know whether the API server created an emulator that the command has to delete.
 */
const CREATE_MILLISECONDS = 30_000;
/** Time limit for the deletion of the emulator after a failure. */
const LAST_WRITE_MILLISECONDS = 10_000;

/** Creates the emulator, and waits until it runs or the time limit is over. @throws CommandError when the emulator fails; ApiError. */
export async function deploy(
  terminal: Terminal,
  globals: Globals,
  { name, flags }: { name: string | undefined; flags: EmulatorFlags },
): Promise<void> {
  check(flags);
  const { signal } = terminal;
  const minutes = timeoutMinutes(flags);
  await withCluster(terminal, globals, async (cluster) => {
    requireRunning(await getNamed(cluster, VM_KIND, flags.vm, signal));
    const created = await createEmulator(cluster, { name, flags });
    const progress = progressLine(terminal);
    const late = AbortSignal.timeout(minutes * 60_000);
    const latest = { emulator: created };
    try {
      await untilBooted(latest, {
        ...cluster,
        signal: AbortSignal.any([signal, late]),
        onVersion: (version) => progress.show(formatLine(version)),
      }).catch((error: unknown) => {
        if (error !== late.reason) {
          throw error;
        }
      });
      progress.end();
      await print(terminal, globals.output, listingOf(EMULATOR_KIND, [latest.emulator]));
    } catch (error) {
      progress.end();
      const isFailure = error instanceof ActionError && error.kind === 'failed';
      throw isFailure || error instanceof Interrupted ? await removed(cluster, created, error) : error;
    }
  });
}

/** @throws CommandError for a flag that is not supported, or for a wrong time limit. */
function check({ config, timeout }: EmulatorFlags): void {
  if (config !== undefined) {
    throw new CommandError(
      '--config: there are no emulator configs. Set the values with --platform, --image-type and --device-profile',
      EXIT.usage,
    );
  }
  if (timeout !== undefined && (timeout < 1 || timeout > DEPLOY_MINUTES_MAXIMUM)) {
    throw new CommandError(
      `--timeout ${timeout} must be from 1 to ${DEPLOY_MINUTES_MAXIMUM} minutes`,
      EXIT.usage,
    );
  }
}

async function createEmulator(
  cluster: UserCluster,
  { name, flags }: { name: string | undefined; flags: EmulatorFlags },
): Promise<Emulator> {
  const { memory, config: _config, deviceProfile: device, ...values } = flags;
  const request = { ...values, device, name } as EmulatorRequest;
  const { metadata, spec } = emulatorOf(request, cluster.namespace);
  // The function that made the spec can only set a memory that is given as a number of MiB, as in requests to the HTTP API. The flag gives
  // the memory as a quantity, so this line sets the memory.
  const emulator: Unsaved<Emulator> = { metadata, spec: { ...spec, memory } };
  try {
    return await createNamed(cluster, EMULATORS, emulator, {
      signal: AbortSignal.timeout(CREATE_MILLISECONDS),
    });
  } catch (error) {
    throw inFlags(error, FLAG_BY_FIELD);
  }
}

/** Deletes the emulator. Returns a new error whose message consists of the message of `error` and the result of the deletion. */
async function removed({ client }: UserCluster, { metadata }: Emulator, error: Error): Promise<Error> {
  const { name, namespace = '', uid } = metadata;
  const signal = AbortSignal.timeout(LAST_WRITE_MILLISECONDS);
  const left = await client.delete(EMULATORS, { namespace, name }, { uid, signal }).then(
    () => `Emulator ${name} was deleted`,
    (reason: unknown) =>
      `Emulator ${name} could not be deleted (${described(reason).message}). The emulator remains until its VM is deleted`,
  );
  return new CommandError(`${error.message}. ${left}`, described(error).exitCode);
}

function formatLine(emulator: Emulator): string {
  const { name, status, message = status } = emulatorItem(emulator);
  return `${name}: ${message}`;
}
