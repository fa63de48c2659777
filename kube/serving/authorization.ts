/** Asks the API server for the identity and the rights of a caller. */
import { createHash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { TLSSocket } from 'node:tls';
import { LRUCache } from 'lru-cache';
import PQueue from 'p-queue';
import type { KubeClient } from '../client.ts';
import {
  SUBJECT_ACCESS_REVIEWS,
  type SubjectAccessReview,
  TOKEN_REVIEWS,
  type TokenReview,
} from '../core.ts';
import { HttpError } from './httperror.ts';

/**
 * Time in milliseconds for which the API server's answer about a caller is reused. A withdrawn token or right still works for this time.
 */
const ANSWER_MILLISECONDS = 10_000;
/**
 * Rest of this time, in milliseconds, in which the API server is asked again while the stored answer is used. So a caller with many requests
 * waits for no review.
 */
const RENEWAL_MILLISECONDS = 2_500;

/**
 * Share of {@link AuthorizerLimits.waiting} that the unfinished SubjectAccessReviews of one user can take. The other places are for other
 * users, even if one user asks about many namespaces that do not exist.
 */
const USER_SHARE = 1 / 4;

export interface AuthorizerLimits {
  /** Largest number of stored answers. The number is limited, because a caller that guesses tokens must not fill the memory. */
  readonly answers: number;
  /**
   * Largest number of TokenReviews that run at the same time. A second limit of the same size applies to SubjectAccessReviews. The process
   * has only 64 connections to the API server, and the limits leave some of them for other requests.
   */
  readonly questions: number;
  /** Largest number of TokenReviews that wait to be sent. A second limit of the same size applies to SubjectAccessReviews. */
  readonly waiting: number;
}

/**
 * Limits for servers with few real callers. If more reviews wait than these limits allow, the cause is probably unknown callers that send
 * invalid tokens.
 */
const FEW_CALLERS: AuthorizerLimits = { answers: 1_024, questions: 4, waiting: 64 };

export type User = NonNullable<NonNullable<TokenReview['status']>['user']>;
export type Attributes = Pick<SubjectAccessReview['spec'], 'nonResourceAttributes' | 'resourceAttributes'>;

/**
 * Stores the API server's answers and reuses them for a few seconds. Callers that need the same answer at the same time share one request.
 * Errors are not stored. Refusals are stored separately, so that invalid tokens do not displace the answers about known callers.
 */
class Answers<V> {
  readonly #asked = new Map<string, { readonly answer: Promise<V>; readonly username: string | undefined }>();
  readonly #accepted: LRUCache<string, { readonly answer: V }>;
  readonly #refused: LRUCache<string, { readonly answer: V }>;
  readonly #queue: PQueue;
  readonly #waiting: number;

  constructor({ answers, questions, waiting }: AuthorizerLimits) {
    this.#accepted = new LRUCache({ max: answers, ttl: ANSWER_MILLISECONDS });
    this.#refused = new LRUCache({ max: answers, ttl: ANSWER_MILLISECONDS });
    this.#queue = new PQueue({ concurrency: questions });
    this.#waiting = waiting;
  }

  /**
   * Returns the stored answer for the key `question`. If none is stored, calls `ask`. `username` is the name of the user, if it is known.
   *
   * @throws HttpError 429 when too many reviews wait, for all users or for this user.
   */
  async ask(question: string, ask: () => Promise<V>, username?: string): Promise<V> {
    const known = this.#accepted.get(question) ?? this.#refused.get(question);
    if (known === undefined) {
      return await (this.#asked.get(question)?.answer ?? this.#begin(question, ask, username));
    }
    const restMilliseconds = this.#accepted.getRemainingTTL(question);
    if (restMilliseconds > 0 && restMilliseconds < RENEWAL_MILLISECONDS && !this.#asked.has(question)) {
      // If the API server does not answer, the stored answer ends at its time, and the next caller gets the error.
      this.#begin(question, ask, username).catch(() => undefined);
    }
    return known.answer;
  }

  async #begin(question: string, ask: () => Promise<V>, username: string | undefined): Promise<V> {
    if (this.#queue.size >= this.#waiting) {
      throw new HttpError(429, 'Too many callers are being checked at the same time. Try again later');
    }
    const own = [...this.#asked.values()].filter((asked) => asked.username === username).length;
    if (username !== undefined && own >= this.#waiting * USER_SHARE) {
      throw new HttpError(
        429,
        `Too many rights of user ${username} are being checked at the same time. Try again later`,
      );
    }
    const asked = this.#queue.add(ask);
    this.#asked.set(question, { answer: asked, username });
    try {
      const answer = await asked;
      const isRefusal = answer === undefined || answer === false;
      const [now, before] = isRefusal ? [this.#refused, this.#accepted] : [this.#accepted, this.#refused];
      before.delete(question);
      now.set(question, { answer });
      return answer;
    } finally {
      this.#asked.delete(question);
    }
  }
}

/**
 * Runs TokenReviews and SubjectAccessReviews. Stores each answer for a few seconds, and limits how many requests run at the same time.
 *
 * @throws Error when the API server does not answer.
 */
export class Authorizer {
  readonly #client: KubeClient;
  readonly #users: Answers<User | undefined>;
  readonly #rights: Answers<boolean>;

  constructor(client: KubeClient, limits = FEW_CALLERS) {
    this.#client = client;
    this.#users = new Answers(limits);
    this.#rights = new Answers(limits);
  }

  /**
   * Returns the user who sent the request. A verified client certificate names the user. Without such a certificate, the bearer token
   * identifies the user. The result is undefined if neither identifies a user.
   */
  async identify(request: IncomingMessage): Promise<User | undefined> {
    const { socket } = request;
    if (socket instanceof TLSSocket && socket.authorized) {
      return userOf(socket);
    }
    const token = bearerToken(request.headers.authorization);
    return token === undefined ? undefined : await this.authenticate(token);
  }

  async authorize(user: User, attributes: Attributes): Promise<boolean> {
    const { username = '', uid, groups = [], extra = {} } = user;
    const question = JSON.stringify([username, uid, groups, extra, attributes]);
    const ask = async () => {
      const review = await this.#client.create(SUBJECT_ACCESS_REVIEWS, {
        metadata: {},
        spec: { user: username, groups, extra, ...(uid === undefined ? {} : { uid }), ...attributes },
      });
      return review.status?.allowed === true;
    };
    return await this.#rights.ask(question, ask, username);
  }

  /** Returns the user of the token. The result is undefined if the API server does not accept the token. */
  async authenticate(token: string): Promise<User | undefined> {
    // The key of the stored answer is a hash of the token, because the memory must not contain tokens in plain text.
    const question = createHash('sha256').update(token).digest('base64');
    return await this.#users.ask(question, async () => {
      const review = await this.#client.create(TOKEN_REVIEWS, { metadata: {}, spec: { token } });
      return review.status?.authenticated === true ? review.status.user : undefined;
    });
  }
}

/**
 * Returns the user that a client certificate names. If the certificate has several common names, the result is undefined, because other
 * programs could read another user from the same certificate. Programs in Go, for example, take the last common name.
 */
function userOf(socket: TLSSocket): User | undefined {
  const { CN, O } = socket.getPeerCertificate().subject as { CN?: unknown; O?: string | string[] };
  return typeof CN === 'string' ? { username: CN, groups: [O ?? []].flat() } : undefined;
}

/** Reads the token of an `Authorization: Bearer …` header. */
function bearerToken(header: string | undefined): string | undefined {
  return header === undefined ? undefined : /^Bearer +(\S+) *$/i.exec(header)?.[1];
}
