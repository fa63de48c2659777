/** Ids of requests, by which their lines in the log are found. */
import { randomUUID } from 'node:crypto';
import type { IncomingMessage } from 'node:http';

/** Header with the id of a request. A client or a proxy can choose the id, and the answer has it. */
export const REQUEST_ID = 'x-request-id';
/** An id that is accepted. It fits proxies that send a UUID, hexadecimal digits or a number, and cannot harm a log. */
const ACCEPTED = /^[\w.:-]{1,64}$/;

/** Returns the id in the header of a request. If the header is absent or has another form, returns a new id. */
export function requestIDOf({ headers }: IncomingMessage): string {
  const sent = headers[REQUEST_ID];
  return typeof sent === 'string' && ACCEPTED.test(sent) ? sent : randomUUID();
}
