/** Reads the settings of macOS that matter for a host, by the programs that come with it. */
import { ProgramError, run } from '../../base/exec.ts';
import { environment } from '../drivers/tart/program.ts';
import { type SoftnetObstacle, softnetObstacle } from '../network/softnet.ts';
import { type Fact, PROGRAM, readFact } from './fact.ts';

export interface MacFacts {
  /** Version of macOS, for example `26.1`. */
  readonly version: Fact<string>;
  /** Version of the program `tart`. */
  readonly tart: Fact<string>;
  /** Why the program `softnet` cannot be used. The known fact is undefined if it can. Absent if the network driver does not need it. */
  readonly softnet?: Fact<SoftnetObstacle | undefined>;
  /** Power settings in use, by the names that `pmset` gives them. */
  readonly power: Fact<ReadonlyMap<string, number>>;
  /** Answer of `fdesetup status`. */
  readonly fileVault: Fact<string>;
  /** User who is logged in when the computer has started. Undefined if there is none. */
  readonly automaticLogin: Fact<string | undefined>;
  /** Time for which a guest gets its address, in seconds. Undefined if nobody has set it. */
  readonly leaseSeconds: Fact<number | undefined>;
  /** Whether this program has the mark of a downloaded file. */
  readonly isQuarantined: Fact<boolean>;
  /** State of the agent's service in launchd. Undefined if launchd has no such service for this user. */
  readonly service: Fact<string | undefined>;
}

/** Name of the agent's service in launchd. */
export const SERVICE = 'dev.berth.agent';
const LOGIN_WINDOW = '/Library/Preferences/com.apple.loginwindow';
const INTERNET_SHARING = '/Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default';

/** Programs of a Mac that a person has installed. */
export interface InstalledPrograms {
  /** Path of the program `tart`. */
  readonly tart: string;
  /** Folder of the machines of `tart`. Undefined if it is not known. */
  readonly home: string | undefined;
  /** Path of the program `softnet`. Undefined if the network driver does not need it. */
  readonly softnet: string | undefined;
}

/** Reads all facts. */
export async function readMac({ tart, home, softnet }: InstalledPrograms): Promise<MacFacts> {
  const own = home === undefined ? undefined : environment({ path: tart, home });
  const tartOptions = { ...PROGRAM, environment: own };
  const [
    version,
    tartVersion,
    filter,
    power,
    fileVault,
    automaticLogin,
    leaseSeconds,
    isQuarantined,
    service,
  ] = await Promise.all([
    readFact(async () => (await run('sw_vers', ['-productVersion'], PROGRAM)).trim()),
    readFact(async () => (await run(tart, ['--version'], tartOptions)).trim()),
    softnet === undefined ? undefined : readFact(async () => await softnetObstacle(softnet)),
    readFact(async () => parsePower(await run('pmset', ['-g'], PROGRAM))),
    readFact(async () => (await run('fdesetup', ['status'], PROGRAM)).trim()),
    readFact(async () => await readDefault(LOGIN_WINDOW, 'autoLoginUser')),
    readFact(async () => parseLease(await readDefault(INTERNET_SHARING, 'bootpd'))),
    readFact(async () => await isMarked(process.execPath)),
    readFact(readService),
  ]);
  return {
    version,
    tart: tartVersion,
    ...(filter && { softnet: filter }),
    power,
    fileVault,
    automaticLogin,
    leaseSeconds,
    isQuarantined,
    service,
  };
}

/** Reads lines such as ` sleep  10 (sleep prevented by powerd)`. */
export function parsePower(text: string): ReadonlyMap<string, number> {
  const lines = text.matchAll(/^\s*([A-Za-z]+)\s+(\d+)\b/gm);
  return new Map([...lines].map(([, name = '', value]) => [name, Number(value)]));
}

/** Reads the lifetime of a lease from settings such as `{ DHCPLeaseTimeSecs = 600; }`. */
export function parseLease(text: string | undefined): number | undefined {
  const [, seconds] = /\bDHCPLeaseTimeSecs\s*=\s*"?(\d+)/.exec(text ?? '') ?? [];
  return seconds === undefined ? undefined : Number(seconds);
}

/** Returns a setting as text. Undefined if it is not set. */
async function readDefault(domain: string, key: string): Promise<string | undefined> {
  return await unlessAnswered(/does not exist/, async () =>
    (await run('defaults', ['read', domain, key], PROGRAM)).trim(),
  );
}

async function isMarked(file: string): Promise<boolean> {
  const mark = await unlessAnswered(
    /No such xattr/,
    async () => await run('xattr', ['-p', 'com.apple.quarantine', file], PROGRAM),
  );
  return mark !== undefined;
}

async function readService(): Promise<string | undefined> {
  const target = `gui/${process.getuid?.()}/${SERVICE}`;
  const text = await unlessAnswered(
    /Could not find/,
    async () => await run('launchctl', ['print', target], PROGRAM),
  );
  return text === undefined ? undefined : (/^\s*state = (.+)$/m.exec(text)?.[1] ?? 'loaded');
}

/** Returns the output of a program. Undefined if it fails with an answer that means that there is no value. */
async function unlessAnswered(answer: RegExp, call: () => Promise<string>): Promise<string | undefined> {
  try {
    return await call();
  } catch (error) {
    if (error instanceof ProgramError && answer.test(error.lastOutput)) {
      return undefined;
    }
    throw error;
  }
}
