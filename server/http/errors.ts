/** Turns every error into a Status. Errors come from handlers, the API server, the validation and the router. */
import { type IncomingMessage, STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import { randomUUID } from 'node:crypto';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { hasZodFastifySchemaValidationErrors } from 'fastify-type-provider-zod';
import * as z from 'zod';
import { ActionError, type ErrorKind } from '../../actions/error.ts';
import { type Cause, failure, type Status } from '../../api/http/status.ts';
import { SUBDOMAIN } from '../../api/v1alpha1/names.ts';
import { LABEL, SHA256, VM_NAME } from '../../api/v1alpha1/schema.ts';
import { FILE_URL } from '../../api/v1alpha1/source.ts';
import { ApiError, isUnreachable } from '../../kube/errors.ts';
import { HttpError } from '../../kube/serving/httperror.ts';

/**
 * Number of seconds after which a client should try again if the API server does not answer. In this time, a control plane can elect a new
 * leader.
 */
const RETRY_AFTER_SECONDS = 5;

/** Answers to requests that the HTTP parser refuses. The key is the code of the parser's error. */
const MALFORMED: Readonly<Record<string, { status: number; message: string }>> = {
  HPE_HEADER_OVERFLOW: { status: 431, message: 'The headers are too long' },
  ERR_HTTP_REQUEST_TIMEOUT: { status: 408, message: 'The request did not arrive in time' },
};
const NO_REQUEST = { status: 400, message: 'This is not an HTTP request' };
/**
 * Time in milliseconds for which the rest of a malformed request is read and dropped. Many clients read the answer only after they have
 * sent the whole request.
 */
const LINGER_MILLISECONDS = 2_000;

/** Status codes of the answers to actions that fail. */
const STATUS_BY_KIND: Readonly<Record<ErrorKind, number>> = {
  invalid: 422,
  missing: 404,
  refused: 409,
  exists: 409,
  gone: 409,
  room: 503,
  failed: 500,
  late: 504,
  unsupported: 501,
  unanswered: 502,
  busy: 503,
};

/** Error of a handler. It contains the Status that the client gets as the answer. */
export class StatusError extends HttpError {
  override readonly name = 'StatusError';
  readonly body: Status;

  constructor(code: number, message: string, more: { reason?: string; causes?: Cause[] } = {}) {
    super(code, message);
    const { reason, causes } = more;
    this.body = failure(code, message, { reason, ...(causes === undefined ? {} : { details: { causes } }) });
  }
}

/**
 * Error when the API server refuses a request that this server sends with its own identity. Either the account of this server was deleted,
 * or the account lacks a right. The caller cannot fix this error.
 */
export class OwnRefusalError extends ApiError {}

/**
 * Returns the error of a handler for the error of an action. `end` is the end of the message. `roomStatus` is the status code if no host has
 * room.
 */
export function answerToAction(
  { kind, message, field, causes }: ActionError,
  { end = '', roomStatus = STATUS_BY_KIND.room }: { end?: string; roomStatus?: number | undefined } = {},
): StatusError {
  if (field !== undefined) {
    return invalidField(field, message);
  }
  const code = kind === 'room' ? roomStatus : STATUS_BY_KIND[kind];
  return new StatusError(code, message + end, {
    ...(kind === 'exists' && { reason: 'AlreadyExists' }),
    ...(causes !== undefined && { causes: [...causes] }),
  });
}

/**
 * Returns the error 404 for an object, with the same message as the API server. `resource` is the plural name of the kind. If the kind has
 * an API group, `resource` also contains the group.
 */
export function notFound(resource: string, name: string): StatusError {
  return new StatusError(404, `${resource} ${JSON.stringify(name)} not found`);
}

/** Returns the error 422 for a mistake in a field of the body. In the text of the error, `message` follows the name of the field. */
export function invalidField(field: string, message: string): StatusError {
  return invalidFields([{ field, message }]);
}

/** Mistake in a field of the body. In the text of the error, `message` follows the name of the field. */
export interface FieldMistake {
  readonly field: string;
  readonly message: string;
}

/** Returns the error 422 for mistakes in fields of the body. `end` is the end of the text of the error. */
export function invalidFields(mistakes: readonly FieldMistake[], end = ''): StatusError {
  const causes = mistakes.map((mistake) => ({ reason: 'FieldValueInvalid', ...mistake }));
  const text = mistakes.map(({ field, message }) => `${field}: ${message}`).join('; ');
  return new StatusError(422, end === '' ? text : `${text}. ${end}`, { causes });
}

/**
 * Sends an error to a client that sent something other than an HTTP request, or a request that is too long or too slow. Then closes the
 * connection.
 */
export function refuseMalformed(error: Error & { code?: string }, socket: Socket): void {
  const { status, message } = MALFORMED[error.code ?? ''] ?? NO_REQUEST;
  if (!socket.writable || error.code === 'ECONNRESET') {
    socket.destroy();
    return;
  }
  const body = JSON.stringify(failure(status, message));
  // The parser would report all further data as errors. Therefore its listener for data is removed, and a new listener drops the data.
  socket.removeAllListeners('data');
  socket.on('data', () => undefined);
  socket.end(
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nConnection: close\r\nContent-Type: application/json; charset=utf-8\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  );
  setTimeout(() => socket.destroy(), LINGER_MILLISECONDS).unref();
}

/** Sends the answer for an error. Only unexpected errors are logged. */
export function sendError(error: unknown, request: FastifyRequest, reply: FastifyReply): void {
  const status = statusOf(error, request);
  if (isUnexpected(error, status)) {
    request.log.error(
      { err: error, method: request.method, route: request.routeOptions.url },
      'request failed',
    );
  }
  const { code = 500 } = status;
  const wait = error instanceof ApiError ? error.retryAfterMilliseconds : undefined;
  if (wait !== undefined || code === 503 || code === 429) {
    void reply.header('retry-after', wait === undefined ? RETRY_AFTER_SECONDS : Math.ceil(wait / 1000));
  }
  // By default, Fastify closes the connection after an error in a request body. A client that is still sending its body could not read the
  // answer. Therefore the header `Connection: close` is removed, and the connection stays open. The rest of the body is read and dropped
  // until the time limit of the request.
  void reply.removeHeader('connection');
  // The router refuses some requests before it calls the hook that sets this header.
  void reply.header(REQUEST_ID, request.id);
  const body = JSON.stringify({ ...status, requestID: request.id });
  void reply.code(code).type('application/json; charset=utf-8').send(body);
}

function isUnexpected(error: unknown, { code }: Status): boolean {
  const isAnswer = [StatusError, ApiError, ActionError].some((type) => error instanceof type);
  return error instanceof OwnRefusalError || (code === 500 && !isAnswer);
}

export function statusOf(error: unknown, request: FastifyRequest): Status {
  if (error instanceof StatusError) {
    return error.body;
  }
  if (error instanceof ActionError) {
    return answerToAction(error).body;
  }
  if (error instanceof HttpError) {
    return failure(error.status, error.message);
  }
  if (error instanceof OwnRefusalError) {
    return failure(
      503,
      'The Kubernetes API server refuses the account of the HTTP API. The log of the HTTP API contains the reason',
    );
  }
  if (error instanceof ApiError) {
    const details = error.details as Status['details'];
    return failure(error.status, error.message, { reason: error.reason, details });
  }
  if (hasZodFastifySchemaValidationErrors(error)) {
    return invalid(error.validation, error.validationContext === 'body' ? request.body : undefined);
  }
  if (isUnreachable(error)) {
    return failure(503, 'The Kubernetes API server does not answer. Try again later');
  }
  return statusOfFramework(error);
}

/** Returns the Status for an error of the router or of the code that reads bodies, for example 413 or 414. */
function statusOfFramework(error: unknown): Status {
  const { statusCode = 500, message = '' } = error as { statusCode?: number; message?: string };
  return statusCode >= 400 && statusCode < 500
    ? failure(statusCode, message)
    : failure(500, 'Internal error');
}

/** Header with the id of a request. A client or a proxy can choose the id, and the answer has it. */
export const REQUEST_ID = 'x-request-id';
/** An id that is accepted. It fits proxies that send a UUID, hexadecimal digits or a number, and cannot harm a log. */
const ACCEPTED = /^[\w.:-]{1,64}$/;

/** Returns the id in the header of a request. If the header is absent or has another form, returns a new id. */
export function requestIDOf({ headers }: IncomingMessage): string {
  const sent = headers[REQUEST_ID];
  return typeof sent === 'string' && ACCEPTED.test(sent) ? sent : randomUUID();
}

/** Largest number of mistakes in an answer. There is a limit, because a hostile client can send thousands of wrong fields. */
const MISTAKES = 20;

interface Mistake {
  /** Code with which zod names the type of the mistake. */
  keyword: string;
  /** Path of the field, with `/` before each part. */
  instancePath: string;
  message?: string | undefined;
  /** Other fields of the issue that zod reported. */
  params: Record<string, unknown>;
}

/** Mistakes in a value for which the schema allows several forms. Each inner list has the mistakes for one form. */
const formsSchema = z.array(z.array(z.object({ code: z.string(), message: z.string() })));

/**
 * Returns an error that lists the mistakes. The code is 400 if a value has the wrong type. Otherwise it is 422: a value is missing or out
 * of its bounds. `given` is the part of the request that contains the values.
 */
function invalid(mistakes: readonly Mistake[], given: unknown): Status {
  const causes = mistakes
    .slice(0, MISTAKES)
    .map(({ instancePath, keyword, message = 'is not valid', params }) => ({
      reason: isMissing(keyword, message) ? 'FieldValueRequired' : 'FieldValueInvalid',
      field: instancePath.slice(1).replaceAll('/', '.'),
      message: isMissing(keyword, message)
        ? 'is required'
        : `${plainMessage({ keyword, instancePath, message, params })}${numberAt(instancePath, given)}`,
    }));
  const text = causes
    .map(({ field, message }) => (field === '' ? message : `${field}: ${message}`))
    .join('; ');
  const isMalformed = mistakes.some((mistake) => hasWrongType(mistake, given));
  return failure(isMalformed ? 400 : 422, text, { details: { causes } });
}

/** Starts of the messages that zod makes by itself. All other messages are those of our schemas. */
const OWN_OF_ZOD = /^(?:Invalid|Too|Unrecognized) /;

/** Allowed forms of texts, by their patterns. A pattern would tell a user nothing. */
const FORMS: ReadonlyMap<string, string> = new Map([
  [
    String(SUBDOMAIN),
    'must have only lower-case letters, digits, dots and dashes, and must begin and end with a letter or digit',
  ],
  [
    String(LABEL),
    'must have only lower-case letters, digits and dashes, and must begin and end with a letter or digit',
  ],
  [
    String(VM_NAME),
    'must have only lower-case letters, digits and dashes, must begin with a letter, and must not end with a dash',
  ],
  [String(SHA256), 'must have exactly 64 lower-case hexadecimal digits'],
  [String(FILE_URL), 'must be an address with http or https, for example https://files.example/disk.qcow2'],
]);

/** Returns a message for people, in place of one that zod makes by itself. */
function plainMessage({ keyword, message = '', params }: Mistake): string {
  if (!OWN_OF_ZOD.test(message)) {
    return message;
  }
  switch (keyword) {
    case 'invalid_type':
      return `must be ${TYPES[String(params['expected'])] ?? String(params['expected'])}`;
    case 'invalid_value':
      return `must be ${[params['values']].flat().map(String).join(' or ')}`;
    case 'invalid_format':
      return formMessage(String(params['pattern']));
    case 'too_small':
      return `must ${sizeOf(params, `at least ${String(params['minimum'])}`)}`;
    case 'too_big':
      return `must ${sizeOf(params, `at most ${String(params['maximum'])}`)}`;
    default:
      return 'has a form that is not allowed. The OpenAPI document shows the allowed ones';
  }
}

/** Types of values in JSON, in plain language. */
const TYPES: Readonly<Record<string, string>> = {
  string: 'a text',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
  object: 'an object',
  record: 'an object',
  array: 'a list',
};

function formMessage(pattern: string): string {
  return (
    FORMS.get(pattern) ??
    'has characters, or an order of them, that are not allowed. The OpenAPI document shows the pattern'
  );
}

/** Units of the sizes of texts and lists. All other values are numbers, which have no size. */
const UNITS: Readonly<Record<string, string>> = { string: 'character', array: 'item' };

/** Returns what a bound says, for example `have at most 63 characters`, or `be at most 500` for a number. */
function sizeOf({ origin }: Mistake['params'], bound: string): string {
  const unit = UNITS[String(origin)];
  return unit === undefined ? `be ${bound}` : `have ${bound} ${unit}${/\D1$/.test(bound) ? '' : 's'}`;
}

/** Reports whether the value of the field has the wrong type. */
function hasWrongType({ keyword, instancePath, message = '', params }: Mistake, given: unknown): boolean {
  switch (keyword) {
    case 'invalid_type':
      return !isMissing(keyword, message);
    case 'invalid_value': {
      const { values } = params;
      const type = typeof valueAt(instancePath, given);
      return type !== 'undefined' && Array.isArray(values) && values.every((value) => typeof value !== type);
    }
    case 'invalid_union': {
      const forms = formsSchema.safeParse(params['errors']).data ?? [];
      return forms.every((form) =>
        form.some(({ code, message: cause }) => code === 'invalid_type' && !isMissing(code, cause)),
      );
    }
    default:
      return false;
  }
}

/**
 * Returns `, not VALUE` if the refused value is a number, and otherwise an empty text. The function never returns a refused text, because
 * the text might be a password.
 */
function numberAt(instancePath: string, given: unknown): string {
  const value = valueAt(instancePath, given);
  return typeof value === 'number' ? `, not ${value}` : '';
}

function valueAt(instancePath: string, given: unknown): unknown {
  const parts = instancePath.split('/').slice(1);
  let value = given;
  for (const part of parts) {
    const isObject = typeof value === 'object' && value !== null;
    value =
      isObject && Object.hasOwn(value as object, part) ? (value as Record<string, unknown>)[part] : undefined;
  }
  return value;
}

/** Reports whether the field is missing. zod has no code for this, so its message is checked. */
function isMissing(keyword: string, message: string): boolean {
  return keyword === 'invalid_type' && message.endsWith('received undefined');
}
