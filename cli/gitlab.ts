/**
 * The noun `gitlab`: the four programs of GitLab's custom executor. Each job gets a VM of its own. The runner calls one program for each
 * stage of a job. Name, uid and key of the VM are in the folder of the job, which the runner makes and removes.
 */
import { randomBytes } from 'node:crypto';
import { mkdir, open, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Command } from 'commander';
import * as z from 'zod';
import { LIFE_MILLISECONDS, prolong } from '../actions/hold.ts';
import { timeoutMinutes } from '../api/http/vmspec.ts';
import { VERSION } from '../api/v1alpha1/version.ts';
import { VMS } from '../api/v1alpha1/resources.ts';
import { isMissing, undefinedIf } from '../base/errors.ts';
import { parseJson } from '../base/json.ts';
import { unlessMissing } from '../kube/errors.ts';
import { withCluster } from './cluster.ts';
import { CommandError, described, EXIT, ProgramEnded, RUN_EXIT } from './errors.ts';
import { parsePairs, wholeNumber } from './flags.ts';
import type { Globals } from './globals.ts';
import { addMachineFlags } from './objects/machineflags.ts';
import type { Terminal } from './terminal.ts';
import { bodyOf, type DeployFlags, vmFrom } from './vm/deploy.ts';
import { inShell, makeKey } from './vm/guestshell.ts';
import { createHeld, keyIn, makeJob, openShell, removeVM, untilReady, whileHeld } from './vm/heldvm.ts';

/** Variable with the name of the VM. The first program chooses the name, and the runner gives it to the others. */
const VM_VARIABLE = 'BERTH_GITLAB_VM';
/** Variable with the image that the job asks for. */
const IMAGE_VARIABLE = 'CUSTOM_ENV_CI_JOB_IMAGE';
/** Programs that a guest needs for most jobs. */
const TOOLS = ['git', 'gitlab-runner'];
/** Minutes until the guest of a VM that was Ready lets the user in. */
const LOGIN_MINUTES = 2;
/** Exit codes of the programs, unless the runner names others. */
const FAILURE = { build: 1, system: 2 } as const;
/** Number of random bytes in the name of a VM, so that no other VM has the name. */
const NAME_BYTES = 8;

interface ConfigFlags {
  readonly buildsDir: string;
  readonly cacheDir: string;
}

interface PrepareFlags extends DeployFlags {
  readonly user?: string;
  readonly identity?: string;
  readonly allowImage?: readonly string[];
}

export function addGitLabCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('config')
    .description('config_exec: choose the name of the VM of a job, and the folders of jobs')
    .option('--builds-dir <path>', 'folder for builds in the guest', '/tmp/builds')
    .option('--cache-dir <path>', 'folder for caches in the guest', '/tmp/cache')
    .action(async (flags: ConfigFlags) => {
      await inStage(terminal, async () => writeConfig(terminal, flags));
    });
  addMachineFlags(noun.command('prepare'))
    .description('prepare_exec: make the VM of a job, and wait until it is Ready')
    .option('--config <name>', 'VM config with values for the flags that are not given')
    .option('--labels <pairs>', 'labels of the VM, as key=value,key=value', parsePairs)
    .option('--timeout <minutes>', 'longest wait in minutes until the VM is Ready (default: 10)', wholeNumber)
    .option('-u, --user <name>', 'user of the VM (default: ssh.user of the settings, or root)')
    .option('--identity <file>', 'file with the private key for the login, instead of a new key for this VM')
    .option(
      '--allow-image <pattern>',
      'image that jobs may choose with `image:`; * at the end stands for any text (can be repeated)',
      addPattern,
    )
    .action(async (flags: PrepareFlags, command: Command) => {
      await inStage(terminal, async () => await prepare(terminal, command.optsWithGlobals<Globals>(), flags));
    });
  noun
    .command('run')
    .description('run_exec: run a script of the runner in the VM of the job')
    .argument('<script>', 'file with the script')
    .argument('<stage>', 'name of the stage')
    .action(async (script: string, _stage: string, _flags: object, command: Command) => {
      await inStage(
        terminal,
        async () => await runScript(terminal, command.optsWithGlobals<Globals>(), script),
      );
    });
  noun
    .command('cleanup')
    .description('cleanup_exec: delete the VM of the job')
    .action(async (_flags: object, command: Command) => {
      await inStage(terminal, async () => await cleanUp(terminal, command.optsWithGlobals<Globals>()));
    });
}

function addPattern(text: string, before: readonly string[] | undefined): readonly string[] {
  return [...(before ?? []), text];
}

/** Gives the failures of a program the exit codes that the runner understands. @throws ProgramEnded. */
async function inStage({ environment, err }: Terminal, work: () => Promise<void>): Promise<void> {
  const codeFrom = (variable: string, code: number) => Number(environment[variable] || code);
  try {
    await work();
  } catch (error) {
    if (error instanceof JobFailed) {
      if (error.message !== '') {
        err(`error: ${error.message}\n`);
      }
      throw new ProgramEnded(codeFrom('BUILD_FAILURE_EXIT_CODE', FAILURE.build));
    }
    err(`error: ${described(error).message}\n`);
    throw new ProgramEnded(codeFrom('SYSTEM_FAILURE_EXIT_CODE', FAILURE.system));
  }
}

/** The job itself has failed, and another attempt would not help. The message is empty if the job has told the reason. */
class JobFailed extends Error {
  override readonly name = 'JobFailed';
}

function writeConfig({ environment, out }: Terminal, { buildsDir, cacheDir }: ConfigFlags): void {
  const id = /^\d{1,20}$/.exec(environment['CUSTOM_ENV_CI_JOB_ID'] ?? '')?.[0] ?? 'job';
  const name = `gitlab-${id}-${randomBytes(NAME_BYTES).toString('hex')}`;
  const answer = {
    builds_dir: buildsDir,
    cache_dir: cacheDir,
    builds_dir_is_shared: false,
    hostname: name,
    driver: { name: 'Berth', version: VERSION },
    job_env: { [VM_VARIABLE]: name },
  };
  out(`${JSON.stringify(answer)}\n`);
}

/** What the programs of a job remember. */
const stateSchema = z.object({
  namespace: z.string(),
  name: z.string(),
  uid: z.string(),
  user: z.string().optional(),
  identity: z.string().optional(),
});
type State = z.infer<typeof stateSchema>;
/** Limits of the file with the state. Longest are the path of a key and three names. */
const STATE_LIMITS = { bytes: 16 * 1024, items: 16 } as const;

/** Returns the name of the VM and the folder of the job. @throws CommandError when the runner did not give them. */
function jobOf({ environment }: Terminal): { name: string; folder: string } {
  const { [VM_VARIABLE]: name = '', TMPDIR: folder = '' } = environment;
  if (name === '' || folder === '') {
    const missing = name === '' ? VM_VARIABLE : 'TMPDIR';
    throw new CommandError(
      `The variable ${missing} is missing. The runner sets it if config_exec is \`berth gitlab config\``,
      EXIT.usage,
    );
  }
  return { name, folder: join(folder, 'berth') };
}

function stateFile(folder: string): string {
  return join(folder, 'vm.json');
}

async function readState(folder: string): Promise<State | undefined> {
  const text = await undefinedIf(isMissing, readFile(stateFile(folder), 'utf8'));
  return text === undefined ? undefined : stateSchema.parse(parseJson(text, STATE_LIMITS));
}

/**
 * Makes the VM and waits until a user can log in.
 *
 * @throws JobFailed when the job asks for an image that is not allowed; CommandError; ApiError.
 */
async function prepare(terminal: Terminal, globals: Globals, flags: PrepareFlags): Promise<void> {
  const { signal } = terminal;
  const { name, folder } = jobOf(terminal);
  const { user, identity } = flags;
  const chosen = { ...flags, ...imageFor(terminal, flags) };
  const body = bodyOf(name, chosen);
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true, mode: 0o700 });
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const sshKey = identity === undefined ? [await makeKey(keyIn(folder), signal)] : flags.sshKey;
    const job = makeJob(
      { terminal, cluster, globals },
      { folder, identity, user, minutes: timeoutMinutes(body) },
    );
    const vm = vmFrom(body, { ...chosen, ...(sshKey && { sshKey }) }, namespace);
    const latest = { vm: await createHeld(job, vm, signal) };
    const { uid = '' } = latest.vm.metadata;
    const state: State = { namespace, name, uid, user, identity };
    await writeFile(stateFile(folder), JSON.stringify(state), { mode: 0o600 });
    await whileHeld(job, latest.vm, signal, async (held) => {
      await untilReady(job, latest, held);
      await using shell = await openShell(job, latest.vm, held);
      const script = 'for tool do command -v "$tool" > /dev/null || echo "$tool"; done';
      const { out: missing } = await shell.read(inShell(script, TOOLS), held);
      for (const tool of missing.split('\n').filter(Boolean)) {
        terminal.err(`The guest has no ${tool}, which most jobs need. Install it in the image\n`);
      }
    });
    // The next program of the job begins with a whole life.
    await prolong({ ...job, client: cluster.client, vm: latest.vm, signal }, LIFE_MILLISECONDS / 2);
  });
}

/** Returns the image that the job asks for. @throws JobFailed when it is not allowed. */
function imageFor({ environment }: Terminal, { allowImage = [] }: PrepareFlags): { image?: string } {
  const image = environment[IMAGE_VARIABLE] ?? '';
  if (image === '') {
    return {};
  }
  const isAllowed = allowImage.some((pattern) =>
    pattern.endsWith('*') ? image.startsWith(pattern.slice(0, -1)) : image === pattern,
  );
  if (!isAllowed) {
    const allowed = allowImage.length === 0 ? 'no image' : allowImage.join(', ');
    throw new JobFailed(`image: ${image} is not allowed on this runner, which allows ${allowed}`);
  }
  return { image };
}

/** Runs the script with bash, or with sh if the guest has no bash. The script reads its own text from the standard input. */
const SCRIPT = 'shell=$(command -v bash || command -v sh); "$shell"; exit $?';

/** @throws JobFailed when the script fails; CommandError; ApiError. */
async function runScript(terminal: Terminal, globals: Globals, file: string): Promise<void> {
  const { signal, environment } = terminal;
  const { folder, name } = jobOf(terminal);
  const state = await readState(folder);
  if (state === undefined) {
    throw new CommandError(`VM ${name} was not prepared`, RUN_EXIT.noVM);
  }
  const { namespace, uid, user, identity } = state;
  await using script = await open(file);
  const code = await withCluster(terminal, { ...globals, namespace }, async (cluster) => {
    const vm = await unlessMissing(cluster.client.get(VMS, { namespace, name }, { signal }));
    if (vm === undefined || vm.metadata.uid !== uid) {
      throw new CommandError(`VM ${name} was deleted`, RUN_EXIT.lost);
    }
    const job = makeJob({ terminal, cluster, globals }, { folder, identity, user, minutes: LOGIN_MINUTES });
    return await whileHeld(job, vm, signal, async (held) => {
      await using shell = await openShell(job, vm, held);
      const stdio = [script.fd, 'inherit', 'inherit'] as const;
      return await shell.exitCode(
        shell.start(inShell(SCRIPT, []), { stdio: [...stdio], signal: held }),
        held,
      );
    });
  });
  if (code !== 0) {
    const { BUILD_EXIT_CODE_FILE: answer } = environment;
    if (answer !== undefined) {
      await writeFile(answer, String(code));
    }
    throw new JobFailed('');
  }
}

/** Deletes the VM of the job, but no other VM of its name. A job without a VM has nothing to delete. @throws ApiError. */
async function cleanUp(terminal: Terminal, globals: Globals): Promise<void> {
  const { folder, name } = jobOf(terminal);
  const state = await readState(folder);
  await withCluster(
    terminal,
    { ...globals, ...(state && { namespace: state.namespace }) },
    async (cluster) => {
      const { client, namespace } = cluster;
      const vm = await unlessMissing(client.get(VMS, { namespace, name }));
      if (vm !== undefined && (state === undefined || vm.metadata.uid === state.uid)) {
        await removeVM({ terminal, cluster }, vm);
      }
    },
  );
}
