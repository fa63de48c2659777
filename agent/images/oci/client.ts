/** Requests to one repository, with what opens it. */
import type { Readable } from 'node:stream';
import { retrying } from './failures.ts';
import { refusal } from './refusals.ts';
import type { Credential } from './credentials.ts';
import { join, type Reference, repositoryName } from '../../../api/v1alpha1/reference.ts';
import type { Tokens } from './tokens.ts';
import type { Exchange, Response, Transport } from './transport.ts';

export interface Ask {
  method: Exchange['method'];
  /** Below `/v2/REPOSITORY/`, or an address that the registry gave for this. */
  at: string | URL;
  /** What is read or written: a tag, a digest; for messages. */
  reference?: string;
  headers?: Readonly<Record<string, string>>;
  /** Called each time it is sent. */
  body?: (() => Buffer | Readable) | undefined;
  writes?: boolean;
  removes?: boolean;
  /** Statuses that are answers, not failures; those of success always are. */
  accept?: readonly number[];
}

export class Session {
  /** `registry.example/team/image`. */
  readonly name: string;
  readonly #base: URL;
  readonly #repository: string;
  readonly #credential: Credential | undefined;
  readonly #transport: Transport;
  readonly #tokens: Tokens;

  constructor(
    reference: Reference,
    credential: Credential | undefined,
    shared: { transport: Transport; tokens: Tokens },
  ) {
    this.name = repositoryName(reference);
    this.#repository = reference.repository;
    this.#credential = credential;
    this.#transport = shared.transport;
    this.#tokens = shared.tokens;
    this.#base = shared.transport.baseUrl(reference.registry);
  }

  get isAnonymous(): boolean {
    return this.#credential === undefined;
  }

  /** `registry.example/team/image:tag`. */
  named(reference: string | undefined): string {
    return reference === undefined ? this.name : join(this.name, reference);
  }

  /** Tries again what may go better; for requests that can be sent twice. @throws ReasonedError */
  async ask(ask: Ask, signal: AbortSignal): Promise<Response> {
    return await retrying(() => this.once(ask, signal), signal);
  }

  /** One try, with one renewal of what opens the registry. @throws ReasonedError or TransientError */
  async once(ask: Ask, signal: AbortSignal): Promise<Response> {
    const what = this.named(ask.reference);
    const need = {
      registry: this.#base,
      scope: this.#scope(ask),
      credential: this.#credential,
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
    throw await refusal(response, { what, registry: this.#base, hasCredential: !this.isAnonymous });
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
        // An upload may be led to another host from its first answer on.
        authorization: url.origin === this.#base.origin ? authorization : undefined,
      },
      signal,
    );
  }

  #scope({ writes, removes }: Ask): string {
    const actions = removes === true ? 'pull,delete' : writes === true ? 'pull,push' : 'pull';
    return `repository:${this.#repository}:${actions}`;
  }
}
