/**
 * Calls the program `tart`, and sends signals to its process of a machine. The exit codes of the program say little. For example, code 0 is
 * also the end of a machine whose hypervisor has failed. So callers look at what is there afterwards.
 */
import { homedir } from 'node:os';
import { dirname } from 'node:path';
import * as z from 'zod';
import { hasCode, undefinedIf, undefinedIfSync } from '../../../base/errors.ts';
import { ProgramError, run } from '../../../base/exec.ts';
import { parseJson } from '../../../base/json.ts';
import { isAlive, killByArgument, type ProcessIdentity } from '../../processes/process.ts';

/** Where the program is, and the folder of its machines (`TART_HOME`). */
export interface TartProgram {
  path: string;
  home: string;
}

/** Time limit of a call in milliseconds. All calls but `create` and `suspend` only read or write small files. */
const CALL_MILLISECONDS = 30_000;
/** Time limit of an installation of macOS in milliseconds. People tell of 20 minutes, and of an hour on a busy disk. */
const INSTALL_MILLISECONDS = 5_400_000;
/** Time limit of `suspend` in milliseconds. It returns at once, and the process of the machine then writes the memory. */
const SUSPEND_CALL_MILLISECONDS = 60_000;
/** Limits of what the program prints. It prints a few lines about one machine. */
const OUTPUT = { bytes: 64 * 1024, items: 1_024 };

/** Signal to the process of a machine: `SIGUSR2` asks the guest to shut down, and `SIGINT` takes the power away. */
type MachineSignal = 'SIGUSR2' | 'SIGINT';

/** Name of the machine with this uid, as the program knows it. */
export function nameOf(uid: string): string {
  return `berth-${uid}`;
}

/**
 * Returns the environment of the program. The program finds the login keychain by HOME, and `softnet` in PATH: both programs are in the same
 * folder. Without `TART_NO_AUTO_PRUNE`, it removes images of other users of the program when the disk is nearly full.
 */
export function environment({ path, home }: TartProgram): NodeJS.ProcessEnv {
  return {
    PATH: `/usr/bin:/bin:/usr/sbin:/sbin:${dirname(path)}`,
    LC_ALL: 'C',
    HOME: homedir(),
    TART_HOME: home,
    TART_NO_AUTO_PRUNE: '1',
  };
}

/** Runs a command of the program, and returns what it prints. @throws ProgramError with the program's words when it fails. */
export async function tart(
  program: TartProgram,
  parameters: readonly string[],
  { timeoutMilliseconds = CALL_MILLISECONDS, signal }: CallOptions = {},
): Promise<string> {
  return await run(program.path, parameters, {
    name: 'tart',
    environment: environment(program),
    timeoutMilliseconds,
    signal,
    outputLimitBytes: OUTPUT.bytes,
  });
}

interface CallOptions {
  timeoutMilliseconds?: number;
  /** If this signal aborts, the program is killed. */
  signal?: AbortSignal | undefined;
}

/** An installation of macOS: the path of the IPSW, and the size of the new disk in decimal gigabytes. */
interface Installation {
  path: string;
  gigabytes: number;
  signal: AbortSignal | undefined;
}

/** Makes a machine by an installation of macOS. No other installation of this machine may be under way. */
export async function install(
  program: TartProgram,
  uid: string,
  { path, gigabytes, signal }: Installation,
): Promise<void> {
  const parameters = ['create', nameOf(uid), '--from-ipsw', path, '--disk-size', String(gigabytes)];
  await tart(program, parameters, { timeoutMilliseconds: INSTALL_MILLISECONDS, signal });
}

/** Ends an installation that is still under way, because the agent that began it was killed. */
export async function endInstallation(uid: string): Promise<void> {
  await killByArgument('create', nameOf(uid));
}

const stateSchema = z.object({ Running: z.boolean() });

/** Returns whether the program says that the machine runs. The result is also false if the program does not know the machine. */
export async function saysRunning(program: TartProgram, uid: string): Promise<boolean> {
  const text = await undefinedIf(
    isExit(NO_SUCH_MACHINE),
    tart(program, ['get', nameOf(uid), '--format', 'json']),
  );
  return text !== undefined && stateSchema.parse(parseJson(text, OUTPUT)).Running;
}

/** Gives a machine with macOS a new ECID, and with it a new serial number and a new hardware UUID. */
export async function renewEcid(program: TartProgram, uid: string): Promise<void> {
  await tart(program, ['set', nameOf(uid), '--random-serial']);
}

/** Begins to suspend a machine that runs. Its process then writes the memory, and ends. @throws ProgramError when the program refuses. */
export async function suspend(program: TartProgram, uid: string): Promise<void> {
  await tart(program, ['suspend', nameOf(uid)], { timeoutMilliseconds: SUSPEND_CALL_MILLISECONDS });
}

/** Returns the IPv4 address of a guest, from the leases of the host's DHCP server. Undefined as long as the guest has none. */
export async function guestAddress(program: TartProgram, uid: string): Promise<string | undefined> {
  const isNone = (error: unknown): boolean => isExit(NO_ADDRESS)(error) || isExit(NO_SUCH_MACHINE)(error);
  const text = await undefinedIf(isNone, tart(program, ['ip', nameOf(uid)]));
  return z.ipv4().safeParse(text?.trim()).data;
}

/** Exit code of the program if it has no such machine, or the machine does not run. */
const NO_SUCH_MACHINE = 2;
/** Exit code of `ip` if there is no address. */
const NO_ADDRESS = 1;

function isExit(code: number): (error: unknown) => boolean {
  return (error) => error instanceof ProgramError && error.exitCode === code;
}

/** Sends a signal to the process of a machine. Does nothing if the process has ended. */
export async function signal(identity: ProcessIdentity, name: MachineSignal): Promise<void> {
  if (await isAlive(identity)) {
    undefinedIfSync(hasCode('ESRCH'), () => process.kill(identity.pid, name));
  }
}
