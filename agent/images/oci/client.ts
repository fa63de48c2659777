/** Sends requests to one repository, with the authorization that its registry requires. */
import type { Readable } from 'node:stream';
import { retrying } from './failures.ts';
import { refusal } from './refusals.ts';
import { type Credential, type InsecureRoute, scopeOf } from './credentials.ts';
import { join, type Reference, repositoryName } from '../../../api/v1alpha1/reference.ts';
import type { RegistryTokens } from './tokens.ts';
import type { RegistryExchange, Response, RegistryTransport } from './transport.ts';

interface Ask {
  method: RegistryExchange['method'];
  /** Path below `/v2/REPOSITORY/`, or a URL that the registry returned for this request. */
  at: string | URL;
  /** Tag or digest that the request reads or writes. It is only for messages. */
  reference?: string;
  headers?: Readonly<Record<string, string>>;
  /** Returns the body of the request. The client calls this function each time it sends the request. */
  body?: (() => Buffer | Readable) | undefined;
  /** Rights that the request needs in the repository. The default is `pull`. */
  rights?: 'pull,push' | 'pull,delete';
  /** HTTP statuses outside 200–299 that count as success for this request. */
  accept?: readonly number[];
}

export class RegistrySession {
  /** Name of the repository: `registry.example/team/image`. */
  readonly name: string;
  readonly #base: URL;
  readonly #repository: string;
  readonly #credential: Credential | undefined;
  readonly #route: InsecureRoute | undefined;
  readonly #transport: RegistryTransport;
  readonly #tokens: RegistryTokens;

  constructor(
    reference: Reference,
    credential: Credential | undefined,
    shared: { transport: RegistryTransport; tokens: RegistryTokens },
    route?: InsecureRoute,
  ) {
    this.name = repositoryName(reference);
    this.#repository = reference.repository;
    this.#credential = credential;
    this.#transport = shared.transport;
    this.#tokens = shared.tokens;
    this.#route = route;
    this.#base = shared.transport.baseUrl(reference.registry, route?.scheme);
  }

  /** Returns the name of the repository, with the tag or digest `reference` if it is defined: `registry.example/team/image:tag`. */
  named(reference: string | undefined): string {
    return reference === undefined ? this.name : join(this.name, reference);
  }

  /**
   * Sends a request, and sends it again after transient failures. Use this function only for requests that do no harm when they are sent
   * twice.
   *
   * @throws ReasonedError when no try succeeds.
   */
  async ask(ask: Ask, signal: AbortSignal): Promise<Response> {
    return await retrying(() => this.once(ask, signal), signal);
  }

  /**
   * Sends a request. If the registry answers 401 and the client can get another authorization, the function sends the request once more
   * with this authorization.
   *
   * @throws ReasonedError, or TransientError when another try can help.
   */
  async once(ask: Ask, signal: AbortSignal): Promise<Response> {
    const what = this.named(ask.reference);
    const need = {
      registry: this.#base,
      scope: `repository:${this.#repository}:${ask.rights ?? 'pull'}`,
      credential: this.#credential,
      trust: scopeOf(this.#route),
      what,
    };
    const sent = await this.#tokens.current(need, signal);
    let response = await this.#send(ask, sent, signal);
    if (response.status === 401 && response.url.origin === this.#base.origin) {
      const better = await this.#tokens.answer(need, response, sent, signal);
      if (better !== undefined) {
        await response.body.dump();
        response = await this.#send(ask, better, signal);
      }
    }
    const { status } = response;
    if ((status >= 200 && status < 300) || ask.accept?.includes(status) === true) {
      return response;
    }
    throw await refusal(response, {
      what,
      registry: this.#base,
      hasCredential: this.#credential !== undefined,
      isPush: ask.rights === 'pull,push',
    });
  }

  async #send(ask: Ask, authorization: string | undefined, signal: AbortSignal): Promise<Response> {
    const url = ask.at instanceof URL ? ask.at : new URL(`/v2/${this.#repository}/${ask.at}`, this.#base);
    return await this.#transport.send(
      {
        method: ask.method,
        url,
        headers: ask.headers ?? {},
        body: ask.body,
        what: this.named(ask.reference),
        unverified: this.#route !== undefined && url.origin === this.#base.origin,
        // The registry can direct an upload to another host. That host must not receive the authorization.
        authorization: url.origin === this.#base.origin ? authorization : undefined,
      },
      signal,
    );
  }
}
