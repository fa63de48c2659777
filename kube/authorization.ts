/** Asks the API server who a caller is and what they may do. */
import { createHash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { TLSSocket } from 'node:tls';
import { LRUCache } from 'lru-cache';
import PQueue from 'p-queue';
import type { KubeClient } from './client.ts';
import { SUBJECT_ACCESS_REVIEWS, type SubjectAccessReview, TOKEN_REVIEWS, type TokenReview } from './core.ts';
import { HttpError } from './httpserver.ts';

/** How long an answer counts: a token withdrawn or a right taken away works so much longer. */
const ANSWER_MILLISECONDS = 10_000;
/** Answers kept; what guesses tokens must not fill the memory. */
const ANSWERS = 1_024;
/** Questions under way at once, of the 64 connections that the process has for everything it asks the API server. */
const QUESTIONS = 4;
/** Questions that wait for their turn. Callers are few, and known for some seconds: more than this are strangers with tokens of their own. */
const QUESTIONS_WAITING = 64;

export type User = NonNullable<NonNullable<TokenReview['status']>['user']>;
export type Attributes = Pick<SubjectAccessReview['spec'], 'nonResourceAttributes' | 'resourceAttributes'>;

/** Answers of a moment ago are given again; questions asked at once are asked once. Errors are not kept. */
class Answers<V> {
  readonly #known = new LRUCache<string, Promise<V>>({ max: ANSWERS, ttl: ANSWER_MILLISECONDS });
  readonly #turns: PQueue;

  constructor(turns: PQueue) {
    this.#turns = turns;
  }

  /** @throws HttpError 429 when too many questions wait already. */
  async ask(question: string, ask: () => Promise<V>): Promise<V> {
    const known = this.#known.get(question);
    if (known !== undefined) {
      return await known;
    }
    if (this.#turns.size >= QUESTIONS_WAITING) {
      throw new HttpError(429, 'Too many callers are being looked up: try again later');
    }
    const answer = this.#turns.add(ask);
    this.#known.set(question, answer);
    try {
      return await answer;
    } catch (error) {
      this.#known.delete(question);
      throw error;
    }
  }
}

/**
 * TokenReview and SubjectAccessReview, each answer kept for some seconds, few asked at once.
 *
 * @throws Error when the API server cannot be asked.
 */
export class Authorizer {
  readonly #client: KubeClient;
  readonly #users: Answers<User | undefined>;
  readonly #rights: Answers<boolean>;

  constructor(client: KubeClient) {
    this.#client = client;
    this.#users = new Answers(new PQueue({ concurrency: QUESTIONS }));
    this.#rights = new Answers(new PQueue({ concurrency: QUESTIONS }));
  }

  /** Who asks: by the client certificate that the server has verified, else by the bearer token; undefined for a stranger. */
  async identify(request: IncomingMessage): Promise<User | undefined> {
    const { socket } = request;
    if (socket instanceof TLSSocket && socket.authorized) {
      return userOf(socket);
    }
    const token = bearerToken(request.headers.authorization);
    return token === undefined ? undefined : await this.#authenticate(token);
  }

  async authorize(user: User, attributes: Attributes): Promise<boolean> {
    const { username = '', uid, groups = [], extra = {} } = user;
    const question = JSON.stringify([username, uid, groups, extra, attributes]);
    return await this.#rights.ask(question, async () => {
      const review = await this.#client.create(SUBJECT_ACCESS_REVIEWS, {
        metadata: {},
        spec: { user: username, groups, extra, ...(uid === undefined ? {} : { uid }), ...attributes },
      });
      return review.status?.allowed === true;
    });
  }

  /** Who bears the token; undefined when the API server does not vouch for it. */
  async #authenticate(token: string): Promise<User | undefined> {
    // Tokens are not kept in memory as they are.
    const question = createHash('sha256').update(token).digest('base64');
    return await this.#users.ask(question, async () => {
      const review = await this.#client.create(TOKEN_REVIEWS, { metadata: {}, spec: { token } });
      return review.status?.authenticated === true ? review.status.user : undefined;
    });
  }
}

/** Of several common names Go takes the last one: whoever has not exactly one is nobody here. */
function userOf(socket: TLSSocket): User | undefined {
  const { CN, O } = socket.getPeerCertificate().subject as { CN?: unknown; O?: string | string[] };
  return typeof CN === 'string' ? { username: CN, groups: [O ?? []].flat() } : undefined;
}

/** The token of an `Authorization: Bearer …` header. */
function bearerToken(header: string | undefined): string | undefined {
  return header === undefined ? undefined : /^Bearer +(\S+) *$/i.exec(header)?.[1];
}
