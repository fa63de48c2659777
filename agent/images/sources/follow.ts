/** Requests of images over http and https that follow redirects. */
import { type Dispatcher, request } from 'undici';
import { describeUrl } from '../../../api/v1alpha1/describe.ts';
import { isTransientStatus, retryAfterMilliseconds, TransientError } from '../oci/failures.ts';
import { ImageError } from '../local/types.ts';

const REDIRECT_LIMIT = 5;

export type Response = Dispatcher.ResponseData;

/**
 * GETs an address, or where it redirects to: 200, 206 or 416, with the body unread.
 *
 * @throws ImageError when the address is not of http or https, leads from https to http or in circles, or is refused;
 * TransientError when trying again may mend it.
 */
export async function follow(
  text: string,
  headers: Record<string, string>,
  { dispatcher, signal }: { dispatcher: Dispatcher; signal: AbortSignal },
): Promise<Response> {
  const first = readUrl(text);
  let url = first;
  for (let hop = 0; hop <= REDIRECT_LIMIT; hop += 1) {
    checkProtocol(url);
    const response = await request(url, { dispatcher, signal, headers });
    const { location } = response.headers;
    // 416: what is there is longer than what there is.
    if ([200, 206, 416].includes(response.statusCode)) {
      return response;
    }
    // An error handler must be there before the body is thrown away.
    await response.body.dump();
    if (response.statusCode < 300 || response.statusCode >= 400 || typeof location !== 'string') {
      throw refusal(url, response);
    }
    const next = URL.parse(location, url.href);
    if (next === null || (url.protocol === 'https:' && next.protocol !== 'https:')) {
      const where = next === null ? 'to no address' : `from https to ${next.protocol}`;
      throw new ImageError('ImageFetchFailed', `${describeUrl(url)} leads ${where}`);
    }
    url = next;
  }
  throw new ImageError(
    'ImageFetchFailed',
    `${describeUrl(first)} leads on more than ${REDIRECT_LIMIT} times`,
  );
}

function refusal(url: URL, { statusCode, headers }: Response): Error {
  const reason = statusCode === 404 ? 'ImageNotFound' : 'ImageFetchFailed';
  const error = new ImageError(reason, `${describeUrl(url)} answered ${statusCode}`);
  const isTransient = isTransientStatus(statusCode);
  return isTransient ? new TransientError(error, retryAfterMilliseconds(headers['retry-after'])) : error;
}

/** An error of the URL itself would tell the whole of it. */
function readUrl(text: string): URL {
  const url = URL.parse(text);
  if (url === null) {
    throw new ImageError('ImageSourceUnsupported', describeUrl(text));
  }
  return url;
}

function checkProtocol(url: URL): void {
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    throw new ImageError('ImageSourceUnsupported', `${url.protocol} is not http or https`);
  }
}
