/** The credential plug-in, which kubectl and this command start (https://kubernetes.io/docs/reference/config-api/client-authentication.v1/). */
import { CommandError, EXIT } from '../errors.ts';
import type { Terminal } from '../terminal.ts';
import { freshSession } from './renew.ts';

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
