/** Sign-in at the provider of the cluster, or with a token that the user pastes. The token stays in the memory of the page. */
import { useEffect, useState } from 'preact/hooks';
import { Api } from '../data/api.ts';
import { RefusedRequestError } from '../data/refusal.ts';
import type { ConsoleSession } from '../data/fleet.ts';
import { goToProvider, readOffer, type SignInOffer, takeToken } from '../data/signin.ts';

interface SignInProps {
  /** Why the user has to sign in again. */
  readonly notice: string | undefined;
  readonly onSignedOut: () => void;
  readonly onSignedIn: (api: Api, session: ConsoleSession) => void;
}

export function SignIn({ notice, onSignedIn, onSignedOut }: SignInProps) {
  const [token, setToken] = useState('');
  const [error, setError] = useState(notice);
  const [isBusy, setBusy] = useState(false);
  const enter = async (readToken: () => Promise<string | undefined>) => {
    setBusy(true);
    try {
      const read = await readToken();
      if (read !== undefined) {
        const api = new Api(read, onSignedOut);
        const limit = AbortSignal.timeout(SIGN_IN_MILLISECONDS);
        onSignedIn(api, await api.get<ConsoleSession>('/console/session', limit));
      }
    } catch (reason) {
      setError(refusalText(reason));
    } finally {
      setBusy(false);
    }
  };
  useEffect(() => void enter(takeToken), []);
  const submit = (event: Event) => {
    event.preventDefault();
    void enter(async () => plainToken(token));
  };
  return (
    <main class="signin">
      <h1>Berth</h1>
      <ProviderButton isBusy={isBusy} />
      <p>
        Sign in with a token of the Kubernetes cluster. The page forgets it when you close or reload the page.
      </p>
      <form onSubmit={submit}>
        <label for="token">Token</label>
        <input
          id="token"
          type="password"
          autocomplete="off"
          spellcheck={false}
          required
          value={token}
          aria-describedby="token-help"
          onInput={({ currentTarget }) => setToken(currentTarget.value)}
        />
        <button type="submit" disabled={isBusy || token === ''}>
          {isBusy ? 'Signing in…' : 'Sign in'}
        </button>
        {error === undefined ? null : (
          <p class="error" role="alert">
            {error}
          </p>
        )}
      </form>
      <dl id="token-help" class="hints">
        <dt>People</dt>
        <dd>
          <code>berth user get-token</code>
        </dd>
        <dt>Programs</dt>
        <dd>
          <code>kubectl create token NAME -n NAMESPACE</code>
        </dd>
        <dt>Demo</dt>
        <dd>
          <code>cat .berth/demo/tokens/dev</code>
        </dd>
      </dl>
    </main>
  );
}

/** Leads to the provider, if the cluster has one. */
function ProviderButton({ isBusy }: { readonly isBusy: boolean }) {
  const [offer, setOffer] = useState<SignInOffer>();
  const [fault, setFault] = useState<string>();
  useEffect(() => {
    readOffer().then(setOffer, (reason: unknown) => setFault(refusalText(reason)));
  }, []);
  if (offer !== undefined) {
    return (
      <button
        type="button"
        class="account primary"
        disabled={isBusy}
        onClick={() => void goToProvider(offer)}
      >
        Continue with your account
      </button>
    );
  }
  return fault === undefined ? null : <p class="calm">Only a token works at the moment. {fault}</p>;
}

/** Time limit of a sign-in in milliseconds. The server asks the API server three times. */
const SIGN_IN_MILLISECONDS = 30_000;

/** Returns the token without the spaces and the word Bearer that people paste with it. */
function plainToken(text: string): string {
  return text.trim().replace(/^Bearer\s+/i, '');
}

function refusalText(error: unknown): string {
  if (error instanceof RefusedRequestError) {
    return error.status === 401
      ? 'The cluster does not accept this token. It may be incomplete, or it has expired.'
      : error.message;
  }
  return 'The server does not answer. Try again.';
}
