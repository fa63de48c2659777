/**
 * The object `Status` of Kubernetes. It is the body of every answer with an error, and of every successful answer that returns no other
 * object.
 */
import * as z from 'zod';

/** Values of the field `reason`, by HTTP status code. Clients of Kubernetes know these values. */
const REASONS: Readonly<Record<number, string>> = {
  400: 'BadRequest',
  401: 'Unauthorized',
  403: 'Forbidden',
  404: 'NotFound',
  405: 'MethodNotAllowed',
  408: 'RequestTimeout',
  409: 'Conflict',
  413: 'RequestEntityTooLarge',
  414: 'RequestURITooLong',
  415: 'UnsupportedMediaType',
  422: 'Invalid',
  429: 'TooManyRequests',
  431: 'RequestHeaderFieldsTooLarge',
  500: 'InternalError',
  501: 'NotImplemented',
  503: 'ServiceUnavailable',
  504: 'Timeout',
};

const causeSchema = z.object({
  reason: z.string().optional(),
  message: z.string().optional(),
  field: z.string().optional(),
});
export type Cause = z.infer<typeof causeSchema>;

export const statusSchema = z
  .object({
    kind: z.literal('Status'),
    apiVersion: z.literal('v1'),
    metadata: z.object({}),
    status: z.enum(['Success', 'Failure']),
    message: z.string().optional(),
    reason: z.string().optional(),
    details: z
      .object({ causes: z.array(causeSchema).optional() })
      .loose()
      .optional(),
    code: z.int().optional(),
    requestID: z
      .string()
      .optional()
      .describe(
        'Id of the failed request. The log of the server has it, and the header X-Request-Id of the answer.',
      ),
  })
  .meta({
    id: 'Status',
    description:
      'An object of the Kubernetes kind Status. It answers a failed request, and a successful request that returns no other object.',
  });
export type Status = z.infer<typeof statusSchema>;

export function success(): Status {
  return { kind: 'Status', apiVersion: 'v1', metadata: {}, status: 'Success' };
}

/** Returns the Status of an error. If `reason` is absent, the Status has the usual reason for the code. */
export function failure(
  code: number,
  message: string,
  more: { reason?: string | undefined; details?: Status['details'] } = {},
): Status {
  const reason = more.reason || REASONS[code] || 'Unknown';
  const { details } = more;
  return {
    kind: 'Status',
    apiVersion: 'v1',
    metadata: {},
    status: 'Failure',
    message,
    reason,
    ...(details === undefined ? {} : { details }),
    code,
  };
}
