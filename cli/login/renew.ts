/** Renews sessions. */
import { CommandError, EXIT } from '../errors.ts';
import { tokensOf, withProvider } from './provider.ts';
import {
  isFresh,
  readSession,
  type Session,
  sessionFields,
  withSessionLock,
  writeSession,
} from './session.ts';
import type { Terminal } from '../terminal.ts';

/** Signal and environment of the command that needs the session. */
type Caller = Pick<Terminal, 'signal' | 'environment'>;

/**
 * Returns the session in `file`, with an ID token that has not expired. Only one process at a time asks the provider, because many
 * providers accept a refresh token only once. The other processes find the new token in the file.
 *
 * @throws CommandError that names the next step; the signal's reason when the signal aborts.
 */
export async function freshSession(file: string, terminal: Caller): Promise<Session> {
  const known = await readSession(file);
  if (isFresh(known)) {
    return known;
  }
  return await withSessionLock(file, terminal.signal, async () => {
    const session = await readSession(file);
    return isFresh(session) ? session : await renewed(file, session, terminal);
  });
}

async function renewed(file: string, session: Session, terminal: Caller): Promise<Session> {
  const { refreshToken, issuer } = session;
  if (refreshToken === undefined) {
    throw new CommandError(
      `Your token has expired, and ${issuer} gave no refresh token. Sign in again`,
      EXIT.denied,
    );
  }
  const tokens = await withProvider(session, terminal, async ({ oidc, configuration }) =>
    tokensOf(await oidc.refreshTokenGrant(configuration, refreshToken)),
  );
  const next = { ...session, ...sessionFields(tokens, session) };
  await writeSession(file, next);
  return next;
}
