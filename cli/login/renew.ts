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

/**
 * Returns the session in `file`, with an ID token that has not expired. Only one process at a time asks the provider, because many
 * providers accept a refresh token only once. The other processes find the new token in the file.
 *
 * @throws CommandError that names the next step; the signal's reason when the signal aborts.
 */
export async function freshSession(file: string, signal: AbortSignal): Promise<Session> {
  const known = await readSession(file);
  if (isFresh(known)) {
    return known;
  }
  return await withSessionLock(file, signal, async () => {
    const session = await readSession(file);
    return isFresh(session) ? session : await renewed(file, session, signal);
  });
}

async function renewed(file: string, session: Session, signal: AbortSignal): Promise<Session> {
  const { refreshToken, issuer } = session;
  if (refreshToken === undefined) {
    throw new CommandError(
      `Your token has expired, and ${issuer} gave no refresh token. Sign in again`,
      EXIT.denied,
    );
  }
  const tokens = await withProvider(session, signal, async ({ oidc, configuration }) =>
    tokensOf(await oidc.refreshTokenGrant(configuration, refreshToken)),
  );
  const next = { ...session, ...sessionFields(tokens, session) };
  await writeSession(file, next);
  return next;
}
