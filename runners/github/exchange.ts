/** Sends requests to GitHub, checks the answers, and turns refusals into errors with a reason. */
import type * as z from 'zod';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { VERSION } from '../../api/v1alpha1/version.ts';
import { errorSchema } from './answers.ts';
import { GitHubError, quote } from './error.ts';
import type { GitHubHttp, GitHubHttpAnswer, GitHubHttpRequest } from './http.ts';

/** Time limit in milliseconds of a request that GitHub answers at once. */
const ANSWER_MILLISECONDS = 30_000;
/** Wait in milliseconds after a refusal for too many requests that names no time. GitHub asks for a minute at least. */
const RATE_LIMIT_MILLISECONDS = 60_000;

/** Type of an exception, with its namespace before it and its assembly behind it. A log shows it, and no token has this form. */
const TYPE_NAME = /(?:^|\.)([A-Za-z]{1,90}Exception)(?:,|$)/;

/** GitHubRequest without the parts that are the same for all requests. */
export type GitHubRequest = Omit<GitHubHttpRequest, 'limitMilliseconds'> & {
  readonly limitMilliseconds?: number;
};

export class Exchange {
  readonly #http: GitHubHttp;
  /** Number of the scale set in the header `User-Agent`. It is 0 until it is known. */
  scaleSetID = 0;

  constructor(http: GitHubHttp) {
    this.#http = http;
  }

  /** Sends a request and returns the answer if it is a success. @throws GitHubError for any other answer, and when no answer comes */
  async send(request: GitHubRequest, signal: AbortSignal): Promise<GitHubHttpAnswer> {
    const headers = { ...request.headers, 'user-agent': this.#userAgent() };
    const answer = await this.#http.send(
      { limitMilliseconds: ANSWER_MILLISECONDS, ...request, headers },
      signal,
    );
    if (answer.status < 200 || answer.status >= 300) {
      throw refusal(request.what, answer);
    }
    return answer;
  }

  /** Sends a request and returns the body of the answer as the schema has it. @throws GitHubError as {@link send}, and for another body */
  async fetch<T>(request: GitHubRequest, schema: z.ZodType<T>, signal: AbortSignal): Promise<T> {
    return readBody(request.what, await this.send(request, signal), schema);
  }

  /** The header of the official client: a JSON text. */
  #userAgent(): string {
    return JSON.stringify({
      system: 'berth',
      version: VERSION,
      commit_sha: 'unknown',
      scale_set_id: this.scaleSetID,
      subsystem: 'runners',
      build_version: VERSION,
      build_commit_sha: 'unknown',
      kind: 'scaleset',
    });
  }
}

/** Returns the body of an answer. @throws GitHubError when the schema refuses it. The message repeats nothing of the body. */
export function readBody<T>(what: string, answer: GitHubHttpAnswer, schema: z.ZodType<T>): T {
  const { data, error } = schema.safeParse(answer.body);
  if (error !== undefined) {
    const path = error.issues[0]?.path.join('.') ?? '';
    const where = path === '' ? 'the answer is not valid' : `the answer has no valid field ${quote(path)}`;
    throw new GitHubError('GitHubFailed', `${what}: ${where}${requestText(answer)}`);
  }
  return data;
}

function refusal(what: string, answer: GitHubHttpAnswer): GitHubError {
  const { status, date } = answer;
  const { typeName: fullName = '', message = '' } = errorSchema.safeParse(answer.body).data ?? {};
  const typeName = TYPE_NAME.exec(fullName)?.[1] ?? '';
  const details = message === '' ? '' : `: ${quote(message)}`;
  const reason = reasonFor(answer, typeName);
  const asked =
    answer.retryAfterMilliseconds ?? (reason === 'RateLimited' ? RATE_LIMIT_MILLISECONDS : undefined);
  return new GitHubError(reason, `${what} was answered with ${status}${details}${requestText(answer)}`, {
    status,
    typeName,
    retryAfterMilliseconds: asked,
    serverDate: date,
  });
}

function reasonFor({ status, isUsedUp, retryAfterMilliseconds }: GitHubHttpAnswer, typeName: string): Reason {
  if (status === 429 || (status === 403 && (isUsedUp || retryAfterMilliseconds !== undefined))) {
    return 'RateLimited';
  }
  if (typeName === 'RunnerScaleSetSessionConflictException') {
    return 'SessionConflict';
  }
  return status === 401 || status === 403 ? 'Unauthorized' : 'GitHubFailed';
}

function requestText({ requestID }: GitHubHttpAnswer): string {
  return requestID === '' ? '' : ` (request ${requestID})`;
}
