/** Asks the API server who the bearer of a token is and what they may do. */
import { createHash } from 'node:crypto';
import type { KubeClient } from './client.ts';
import { SUBJECT_ACCESS_REVIEWS, type SubjectAccessReview, TOKEN_REVIEWS, type TokenReview } from './core.ts';

/** How long an answer counts: a token withdrawn or a right taken away works so much longer. */
const ANSWER_MILLISECONDS = 10_000;
/** Answers kept; what guesses tokens must not fill the memory. */
const ANSWERS = 1_024;

export type User = NonNullable<NonNullable<TokenReview['status']>['user']>;
export type Attributes = Pick<SubjectAccessReview['spec'], 'nonResourceAttributes' | 'resourceAttributes'>;

interface Answer<V> {
  value: Promise<V>;
  until: number;
}

/** Answers of a moment ago are given again; questions asked at once are asked once. Errors are not kept. */
class Answers<V> {
  readonly #known = new Map<string, Answer<V>>();
  readonly #now: () => number;

  constructor(now: () => number) {
    this.#now = now;
  }

  async ask(question: string, ask: () => Promise<V>): Promise<V> {
    const known = this.#known.get(question);
    if (known !== undefined && known.until > this.#now()) {
      return known.value;
    }
    this.#makeRoom();
    const answer = { value: ask(), until: this.#now() + ANSWER_MILLISECONDS };
    this.#known.set(question, answer);
    try {
      return await answer.value;
    } catch (error) {
      this.#known.delete(question);
      throw error;
    }
  }

  #makeRoom(): void {
    for (const [question, { until }] of this.#known) {
      if (until > this.#now() && this.#known.size < ANSWERS) {
        return;
      }
      this.#known.delete(question);
    }
  }
}

/** TokenReview and SubjectAccessReview, each answer kept for some seconds. Rejects when the API server cannot be asked. */
export class Authorizer {
  readonly #client: KubeClient;
  readonly #users: Answers<User | undefined>;
  readonly #rights: Answers<boolean>;

  constructor(client: KubeClient, now: () => number = () => performance.now()) {
    this.#client = client;
    this.#users = new Answers(now);
    this.#rights = new Answers(now);
  }

  /** Who bears the token; undefined when the API server does not vouch for it. */
  async authenticate(token: string): Promise<User | undefined> {
    // Tokens are not kept in memory as they are.
    const question = createHash('sha256').update(token).digest('base64');
    return this.#users.ask(question, async () => {
      const review = await this.#client.create(TOKEN_REVIEWS, { metadata: {}, spec: { token } });
      return review.status?.authenticated === true ? review.status.user : undefined;
    });
  }

  async authorize(user: User, attributes: Attributes): Promise<boolean> {
    const { username = '', uid, groups = [], extra = {} } = user;
    const question = JSON.stringify([username, uid, groups, extra, attributes]);
    return this.#rights.ask(question, async () => {
      const review = await this.#client.create(SUBJECT_ACCESS_REVIEWS, {
        metadata: {},
        spec: { user: username, groups, extra, ...(uid === undefined ? {} : { uid }), ...attributes },
      });
      return review.status?.allowed === true;
    });
  }
}

/** The token of an `Authorization: Bearer …` header. */
export function bearerToken(header: string | undefined): string | undefined {
  return header === undefined ? undefined : /^Bearer +(\S+) *$/i.exec(header)?.[1];
}
