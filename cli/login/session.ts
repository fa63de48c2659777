/** Stores the tokens of a sign-in in a file that only its owner can read. These tokens are never in the kubeconfig. */
import { createHash } from 'node:crypto';
import { mkdir, readFile, rm } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { existsSync } from 'node:fs';
import { isMissing, undefinedIf } from '../../base/errors.ts';
import { homeFolder, withFileLock, writeWhole } from '../../base/files.ts';
import { CommandError, EXIT } from '../errors.ts';
import { type Settings, settingsFile } from '../settingsfile.ts';
import type { Terminal } from '../terminal.ts';
import { kubeconfigsIn } from '../../kube/credentials.ts';
import type { Globals } from '../globals.ts';

/**
 * Age after which the lock of a session counts as left behind by a killed process. A running process holds the lock for a shorter time. It
 * waits for at most two answers of the provider, and at most 20 s for each answer.
 */
const STALE_MILLISECONDS = 60_000;
/**
 * A token is renewed before it expires. The time between the renewal and the expiry is a fixed fraction of the token's lifetime or a fixed
 * number of milliseconds, whichever is shorter.
 */
const MARGIN = { part: 0.2, milliseconds: 60_000 };

export interface LoginSession {
  readonly issuer: string;
  readonly clientID: string;
  /** Private certificate authority of the provider as PEM. */
  readonly authority?: string;
  readonly idToken: string;
  /** Time after which the ID token must be renewed, in milliseconds since the epoch. */
  readonly end: number;
  /** Absent if the provider gave no refresh token. */
  readonly refreshToken?: string;
}

/** Tokens as a provider gives them. */
export interface LoginTokens {
  readonly idToken: string;
  readonly refreshToken?: string | undefined;
  /** Lifetime of the ID token in seconds. */
  readonly life: number;
}

/** Returns the path of the session of a context. */
export function sessionFile(
  { environment }: Pick<Terminal, 'environment'>,
  { file, context }: ContextPlace,
): string {
  const name = createHash('sha256').update(`${file}\0${context}`).digest('hex').slice(0, 16);
  return join(dirname(settingsFile(environment)), 'sessions', `${name}.json`);
}

/**
 * Returns the tokens as fields of a session. The code computes `end` with the clock of this computer, because the clock of the provider can
 * differ. If the provider gives no new refresh token, the session keeps the refresh token of `earlier`.
 */
export function sessionFields(
  { idToken, refreshToken, life }: LoginTokens,
  earlier?: LoginSession,
): Pick<LoginSession, 'idToken' | 'end' | 'refreshToken'> {
  const milliseconds = life * 1000;
  const kept = refreshToken ?? earlier?.refreshToken;
  return {
    idToken,
    end: Date.now() + milliseconds - Math.min(milliseconds * MARGIN.part, MARGIN.milliseconds),
    ...(kept !== undefined && { refreshToken: kept }),
  };
}

export function isFresh({ end }: LoginSession): boolean {
  return end > Date.now();
}

/** Returns the session in the file. @throws CommandError when the file does not exist, or when its content is not a session. */
export async function readSession(file: string): Promise<LoginSession> {
  const text = await undefinedIf(isMissing, readFile(file, 'utf8'));
  const session = text === undefined ? undefined : parseSession(text);
  if (session === undefined) {
    throw new CommandError(`There is no session in ${file}. Sign in again`, EXIT.denied);
  }
  return session;
}

/** Creates or replaces a session. Only the owner can read the file. */
export async function writeSession(file: string, session: LoginSession): Promise<void> {
  await mkdir(dirname(file), { recursive: true, mode: 0o700 });
  await writeWhole(file, JSON.stringify(session));
}

export async function removeSession(file: string): Promise<void> {
  await rm(file, { force: true });
}

/**
 * Replaces the session, or removes it if `session` is undefined. First waits for a renewal of the earlier session to end. Otherwise the
 * renewal could write the earlier session again.
 */
export async function replaceSession(
  file: string,
  session: LoginSession | undefined,
  signal: AbortSignal,
): Promise<void> {
  await withSessionLock(file, signal, async () => {
    await (session === undefined ? removeSession(file) : writeSession(file, session));
  });
}

/** Runs `work` while no other process changes the session. */
export async function withSessionLock<T>(
  file: string,
  signal: AbortSignal,
  work: () => Promise<T>,
): Promise<T> {
  await mkdir(dirname(file), { recursive: true, mode: 0o700 });
  return await withFileLock(`${file}.lock`, { staleMilliseconds: STALE_MILLISECONDS, signal }, work);
}

function parseSession(text: string): LoginSession | undefined {
  let document: unknown;
  try {
    document = JSON.parse(text);
  } catch {
    // The message of the parser is not shown, because it could contain a part of a token.
    return undefined;
  }
  const session = (
    typeof document === 'object' && document !== null ? document : {}
  ) as Partial<LoginSession>;
  const { issuer, clientID, authority = '', idToken, end, refreshToken = '' } = session;
  const areTexts = [issuer, clientID, authority, idToken, refreshToken].every(
    (text) => typeof text === 'string',
  );
  return areTexts && typeof end === 'number' ? (session as LoginSession) : undefined;
}

/** Name of the context if neither a flag nor the settings name a context. */
const CONTEXT = 'berth';

export interface ContextPlace {
  /** Path of the kubeconfig. The file might not exist yet. */
  readonly file: string;
  readonly context: string;
}

/**
 * Returns the name of the context, and the path of its kubeconfig. If no flag names the kubeconfig, it is the file that kubectl would
 * change. This is the first file in `KUBECONFIG` that exists, or the last file if none exists. An empty flag counts as absent.
 */
export function placeOf(
  { environment }: Pick<Terminal, 'environment'>,
  { kubeconfig, context }: Pick<Globals, 'kubeconfig' | 'context'>,
  settings: Settings,
): ContextPlace {
  const files = kubeconfigsIn(environment);
  const named = kubeconfig || (files.find((file) => existsSync(file)) ?? files.at(-1));
  return {
    file: resolve(named ?? join(homeFolder(environment), '.kube', 'config')),
    context: context || (settings.context ?? CONTEXT),
  };
}
