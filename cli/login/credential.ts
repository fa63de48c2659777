/** The credential plug-in, which kubectl and this command start (https://kubernetes.io/docs/reference/config-api/client-authentication.v1/). */
import { CommandError, EXIT } from '../errors.ts';
import type { Terminal } from '../terminal.ts';
import { tokensOf, withProvider } from './provider.ts';
import {
  isFresh,
  readSession,
  type LoginSession,
  sessionFields,
  withSessionLock,
  writeSession,
} from './session.ts';

const API_VERSIONS = ['client.authentication.k8s.io/v1', 'client.authentication.k8s.io/v1beta1'];

/**
 * Reads the session in `file`, and writes its ID token to the standard output. If necessary, renews the session first.
 *
 * @throws CommandError that names the next step; the signal's reason when the signal aborts.
 */
export async function credential(terminal: Terminal, file: string): Promise<void> {
  const { environment, out } = terminal;
  const apiVersion = versionIn(environment['KUBERNETES_EXEC_INFO']);
  const { idToken: token, end } = await freshSession(file, terminal);
  const status = { token, expirationTimestamp: new Date(end).toISOString() };
  out(`${JSON.stringify({ apiVersion, kind: 'ExecCredential', status })}\n`);
}

/**
 * Returns the API version in `request`. The program that started this command gives `request` in the variable `KUBERNETES_EXEC_INFO`. If
 * there is no `request`, returns the newest version.
 *
 * @throws CommandError for an unknown version.
 */
function versionIn(request = JSON.stringify({ apiVersion: API_VERSIONS[0] })): string {
  let version: unknown;
  try {
    ({ apiVersion: version } = JSON.parse(request) as { apiVersion?: unknown });
  } catch {
    version = undefined;
  }
  const known = API_VERSIONS.find((candidate) => candidate === version);
  if (known === undefined) {
    throw new CommandError(
      `KUBERNETES_EXEC_INFO must have the apiVersion ${API_VERSIONS.join(' or ')}`,
      EXIT.usage,
    );
  }
  return known;
}

/** Signal and environment of the command that needs the session. */
type Caller = Pick<Terminal, 'signal' | 'environment'>;

/**
 * Returns the session in `file`, with an ID token that has not expired. Only one process at a time asks the provider, because many
 * providers accept a refresh token only once. The other processes find the new token in the file.
 *
 * @throws CommandError that names the next step; the signal's reason when the signal aborts.
 */
async function freshSession(file: string, terminal: Caller): Promise<LoginSession> {
  const known = await readSession(file);
  if (isFresh(known)) {
    return known;
  }
  return await withSessionLock(file, terminal.signal, async () => {
    const session = await readSession(file);
    return isFresh(session) ? session : await renewed(file, session, terminal);
  });
}

async function renewed(file: string, session: LoginSession, terminal: Caller): Promise<LoginSession> {
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
