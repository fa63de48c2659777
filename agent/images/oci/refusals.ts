/** Converts a registry's refusals to errors with a reason, and decides whether another try can help. */
import * as z from 'zod';
import { type Reason, ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../../base/errors.ts';
import { JsonCheck, JsonError, type JsonLimits } from '../../../base/json.ts';
import { ByteCollector } from '../../../base/lines.ts';
import { isTransientStatus, networkError, retryAfterMilliseconds, TransientError } from './failures.ts';
import { optionalText, printable } from './manifests.ts';
import type { Response } from './transport.ts';

/** Limits of the body of a refusal. The body usually contains a list of one error. A larger body is ignored. */
const ERROR_BODY_LIMITS: JsonLimits = { bytes: 64 * 1024, items: 256 };
/** An error message shows at most this number of characters of the text that a server sent. */
const MESSAGE_LENGTH = 300;

const errorSchema = z.object({ code: optionalText, message: optionalText }).catch({});
/** A refusal of a registry. Some token servers write the error of OAuth 2 or only `details` instead of a list of errors. */
const errorsSchema = z
  .object({
    errors: z.array(errorSchema).catch([]),
    error: optionalText,
    error_description: optionalText,
    details: optionalText,
  })
  .transform(({ errors, error, error_description: description, details }) => {
    const first = errors.find(({ code, message }) => code !== undefined || message !== undefined);
    return first ?? { code: error, message: description ?? details };
  })
  .catch({});

interface Asked {
  /** Text at the beginning of the error message, for example `registry.example/team/image:tag`. */
  what: string;
  /** URL of the registry itself, not of the storage servers to which it redirects. */
  registry: URL;
  hasCredential: boolean;
  /** Whether the request is a part of a push. */
  isPush: boolean;
}

/** Returns the error for a response with an unexpected status. The body of the response is read or discarded. */
export async function refusal(response: Response, asked: Asked): Promise<ReasonedError | TransientError> {
  const { status, url } = response;
  const { code, message } = await readError(response, asked.what);
  const isOwn = url.origin === asked.registry.origin;
  const said = [code, message].filter((part) => part !== undefined && part !== '').join(': ');
  const sentences = [`${asked.what}: ${url.host} answered ${status}`];
  if (said !== '') {
    sentences.push(` (${said})`);
  }
  if (isOwn) {
    sentences.push(hintFor(status, asked));
  }
  const error = new ReasonedError(isOwn ? reasonFor(status, code) : 'ImageFetchFailed', sentences.join(''));
  // A URL of a storage server is valid for minutes only. Another try can help, because the registry then redirects to a new URL.
  const isTransient = isTransientStatus(status) || (!isOwn && status < 500);
  return isTransient
    ? new TransientError(error, retryAfterMilliseconds(response.headers['retry-after']))
    : error;
}

/** Body of a response that is in memory. */
interface Body {
  bytes: Buffer;
  /** Parses the body as JSON. @throws JsonError when it is not JSON. */
  parse: () => unknown;
}

/**
 * Reads the whole body of a response into memory. The connection is closed as soon as the body exceeds a limit.
 *
 * @throws JsonError when the body exceeds a limit. @throws ReasonedError or TransientError from {@link networkError} when the transfer
 * fails.
 */
export async function readBody(
  response: Response,
  limits: JsonLimits,
  what: string,
  signal?: AbortSignal,
): Promise<Body> {
  const check = new JsonCheck(limits);
  const collector = new ByteCollector();
  try {
    for await (const chunk of response.body as AsyncIterable<Buffer>) {
      check.push(chunk);
      collector.add(chunk);
    }
  } catch (error) {
    throw error instanceof JsonError ? error : networkError(error, what, signal);
  }
  const bytes = collector.take();
  return { bytes, parse: () => check.parse(bytes) };
}

function reasonFor(status: number, code: string | undefined): Reason {
  if (code === 'DIGEST_INVALID') {
    return 'DigestMismatch';
  }
  if (status === 401 || status === 403) {
    return 'ImageAccessDenied';
  }
  return status === 404 ? 'ImageNotFound' : 'ImageFetchFailed';
}

function hintFor(status: number, { hasCredential, isPush }: Asked): string {
  const isDenied = status === 401 || status === 403;
  if (isDenied && hasCredential) {
    return '; the given credentials do not allow this request';
  }
  if (isPush) {
    return isDenied ? '; the push needs credentials that allow it' : '';
  }
  if (isDenied) {
    return '; the image needs credentials (imagePullSecrets), or it does not exist';
  }
  return status === 404 && !hasCredential
    ? '; if the image is private, it needs credentials (imagePullSecrets)'
    : '';
}

async function readError(
  response: Response,
  what: string,
): Promise<{ code?: string | undefined; message?: string | undefined }> {
  try {
    const body = await readBody(response, ERROR_BODY_LIMITS, what);
    const { code = '', message = '' } = errorsSchema.parse(body.parse());
    return { code: printable(code, MESSAGE_LENGTH), message: printable(message, MESSAGE_LENGTH) };
  } catch (error) {
    // The function does not throw this error, because the response's status is known even without the body.
    return error instanceof JsonError ? {} : { message: `its message was cut off: ${messageOf(error)}` };
  }
}
