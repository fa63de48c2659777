/** Converts a registry's refusals to errors with a reason, and decides whether another try can help. */
import * as z from 'zod';
import { parseDocument } from '../../../api/v1alpha1/machine.ts';
import { type Reason, ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../../base/errors.ts';
import { isTransientStatus, networkError, retryAfterMilliseconds, TransientError } from './failures.ts';
import { printable } from './manifests.ts';
import type { Response } from './transport.ts';

/**
 * Size limit, in bytes, of the body of a refusal. The body usually contains a list of errors, which is smaller than this limit. A larger
 * body is ignored.
 */
const ERROR_BODY_BYTES = 64 * 1024;
/** An error message shows at most this number of characters of the text that a server sent. */
const MESSAGE_LENGTH = 300;

const errorsSchema = z.object({
  errors: z.array(z.object({ code: z.string().optional(), message: z.string().optional() })).min(1),
});

export interface Asked {
  /** Text at the beginning of the error message, for example `registry.example/team/image:tag`. */
  what: string;
  /** URL of the registry itself, not of the storage servers to which it redirects. */
  registry: URL;
  hasCredential: boolean;
}

/** Returns the error for a response with an unexpected status. The body of the response is read or discarded. */
export async function refusal(response: Response, asked: Asked): Promise<ReasonedError | TransientError> {
  const { status, url } = response;
  const { code, message } = await readError(response, asked.what);
  const isOwn = url.origin === asked.registry.origin;
  const said = [code, message].filter((part) => part !== undefined && part !== '').join(': ');
  const words = [`${asked.what}: ${url.host} answered ${status}`];
  if (said !== '') {
    words.push(` (${said})`);
  }
  if (isOwn) {
    words.push(hintFor(status, asked.hasCredential));
  }
  const error = new ReasonedError(isOwn ? reasonFor(status, code) : 'ImageFetchFailed', words.join(''));
  // A URL of a storage server is valid for minutes only. Another try can help, because the registry then redirects to a new URL.
  const isTransient = isTransientStatus(status) || (!isOwn && status < 500);
  return isTransient
    ? new TransientError(error, retryAfterMilliseconds(response.headers['retry-after']))
    : error;
}

/**
 * Reads the whole body of a response into memory. Returns undefined when the body is larger than `limitBytes`.
 *
 * @throws ReasonedError or TransientError from {@link networkError} when the transfer fails.
 */
export async function readBody(
  response: Response,
  limitBytes: number,
  what: string,
  signal?: AbortSignal,
): Promise<Buffer | undefined> {
  const chunks: Buffer[] = [];
  let size = 0;
  try {
    for await (const chunk of response.body as AsyncIterable<Buffer>) {
      size += chunk.length;
      // The return statement ends the loop, and the end of the loop closes the connection.
      if (size > limitBytes) {
        return undefined;
      }
      chunks.push(chunk);
    }
  } catch (error) {
    throw networkError(error, what, signal);
  }
  return Buffer.concat(chunks);
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

function hintFor(status: number, hasCredential: boolean): string {
  if (status === 401 || status === 403) {
    return hasCredential
      ? '; the given credentials do not allow this request'
      : '; the image needs credentials (imagePullSecrets), or it does not exist';
  }
  return status === 404 && !hasCredential
    ? '; if the image is private, it needs credentials (imagePullSecrets)'
    : '';
}

async function readError(
  response: Response,
  what: string,
): Promise<{ code?: string | undefined; message?: string | undefined }> {
  let body: Buffer | undefined;
  try {
    body = await readBody(response, ERROR_BODY_BYTES, what);
  } catch (error) {
    // The function does not throw this error, because the response's status is known even without the body.
    return { message: `its message was cut off: ${messageOf(error)}` };
  }
  if (body === undefined) {
    return {};
  }
  const { data } = errorsSchema.safeParse(parseDocument(body.toString('utf8')));
  const { code = '', message = '' } = data?.errors[0] ?? {};
  return { code: printable(code, MESSAGE_LENGTH), message: printable(message, MESSAGE_LENGTH) };
}
