/** Who may call the agent: whoever the API server vouches for, by its client authority or by a token review, and lets do what is asked. */
import type { IncomingMessage } from 'node:http';
import { TLSSocket } from 'node:tls';
import type { KubeClient } from '../../kube/client.ts';
import {
  SUBJECT_ACCESS_REVIEWS,
  type SubjectAccessReview,
  TOKEN_REVIEWS,
  type TokenReview,
} from '../../kube/core.ts';

/** Answers are remembered for as long as a kubelet remembers a refusal, and never for more callers than this. */
const ANSWER_MILLISECONDS = 10_000;
const ANSWERS_KEPT = 256;

export interface Caller {
  user: string;
  groups: readonly string[];
}

/** Subresources of a Node: `metrics`, and `proxy` for all that reaches into machines. */
export type Subresource = 'proxy' | 'metrics';

export type Verdict = { status: 200; caller: Caller } | { status: 401 | 403; message: string };

export class Authorizer {
  readonly #client: KubeClient;
  readonly #nodeName: string;
  readonly #answers = new Map<string, { until: number; answer: Promise<boolean> }>();
  readonly #callers = new Map<string, { until: number; answer: Promise<Caller | undefined> }>();

  constructor(client: KubeClient, nodeName: string) {
    this.#client = client;
    this.#nodeName = nodeName;
  }

  async judge(request: IncomingMessage, subresource: Subresource): Promise<Verdict> {
    const caller = await this.#identify(request);
    if (caller === undefined) {
      return { status: 401, message: 'Unauthorized' };
    }
    const verb = request.method === 'POST' ? 'create' : 'get';
    const key = JSON.stringify([caller, verb, subresource]);
    const allowed = await remembered(this.#answers, key, () => this.#mayDo(caller, verb, subresource));
    return allowed
      ? { status: 200, caller }
      : {
          status: 403,
          message: `Forbidden (user=${caller.user}, verb=${verb}, resource=nodes, subresource=${subresource})`,
        };
  }

  async #identify(request: IncomingMessage): Promise<Caller | undefined> {
    const { socket } = request;
    if (socket instanceof TLSSocket && socket.authorized) {
      const { CN, O } = socket.getPeerCertificate().subject;
      return { user: CN, groups: [O].flat() };
    }
    const token = /^Bearer (\S+)$/.exec(request.headers.authorization ?? '')?.[1];
    return token === undefined ? undefined : remembered(this.#callers, token, () => this.#reviewToken(token));
  }

  async #reviewToken(token: string): Promise<Caller | undefined> {
    const review = await this.#client.create<TokenReview>(TOKEN_REVIEWS, { metadata: {}, spec: { token } });
    const user = review.status?.authenticated === true ? review.status.user : undefined;
    return user?.username === undefined ? undefined : { user: user.username, groups: user.groups ?? [] };
  }

  async #mayDo(caller: Caller, verb: string, subresource: Subresource): Promise<boolean> {
    const review = await this.#client.create<SubjectAccessReview>(SUBJECT_ACCESS_REVIEWS, {
      metadata: {},
      spec: {
        user: caller.user,
        groups: [...caller.groups],
        resourceAttributes: { verb, version: 'v1', resource: 'nodes', subresource, name: this.#nodeName },
      },
    });
    return review.status?.allowed === true;
  }
}

/** One question at a time per key; an error is no answer and is not remembered. */
async function remembered<T>(
  answers: Map<string, { until: number; answer: Promise<T> }>,
  key: string,
  ask: () => Promise<T>,
): Promise<T> {
  const known = answers.get(key);
  if (known !== undefined && known.until > performance.now()) {
    return known.answer;
  }
  answers.delete(key);
  const oldest = answers.keys().next().value;
  if (answers.size >= ANSWERS_KEPT && oldest !== undefined) {
    answers.delete(oldest);
  }
  const answer = ask();
  answers.set(key, { until: performance.now() + ANSWER_MILLISECONDS, answer });
  answer.catch(() => answers.delete(key));
  return answer;
}
