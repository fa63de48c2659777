/** Asks the API server for the user of a token. */
import { causeOfRefusal, type SignIn } from '../../api/http/refusedtoken.ts';
import { VERSION } from '../../api/v1alpha1/version.ts';
import { apiErrorFrom } from '../../kube/errors.ts';
import { CommandError, EXIT, explained } from '../errors.ts';
import type { ServerAddress } from './target.ts';

const PATH = '/apis/authentication.k8s.io/v1/selfsubjectreviews';

/**
 * Returns the name of the token's user. `signIn` is the identity provider that gave the token.
 *
 * @throws CommandError that names the next step, when the API server refuses the token or does not answer; ApiError.
 */
export async function userOf(
  address: ServerAddress,
  token: string,
  signIn: SignIn,
  signal: AbortSignal,
): Promise<string> {
  const [{ Transport }, { Registry }] = await Promise.all([
    import('../../kube/transport.ts'),
    import('prom-client'),
  ]);
  const { server, certificateAuthority, serverName } = address;
  const connection = { server, certificateAuthority, serverName, token };
  const transport = new Transport(connection, { metrics: new Registry(), userAgent: `berth/${VERSION}` });
  try {
    const review = { apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview' };
    const { status, body } = await transport.request({ method: 'POST', path: PATH, body: review, signal });
    if (status === 401) {
      const cause = causeOfRefusal(token, signIn) ?? UNKNOWN_CAUSE;
      throw new CommandError(
        `Unauthorized: the API server ${server} refuses your token. ${cause}`,
        EXIT.denied,
      );
    }
    if (status !== 201) {
      throw apiErrorFrom(body, status);
    }
    return nameIn(body);
  } catch (error) {
    throw explained(error, `API server ${server}`, 'the kubeconfig');
  } finally {
    await transport.close();
  }
}

/** Next step for the user if the token does not show why the API server refused it. */
const UNKNOWN_CAUSE =
  'Ask an admin to compare issuer, client ID and groups of the identity provider with the configuration of the API server';

function nameIn(review: unknown): string {
  const { status } = review as { status?: { userInfo?: { username?: unknown } } };
  const name = status?.userInfo?.username;
  return typeof name === 'string' ? name : '';
}
