/** Refusals of requests. */
import type { FieldCause } from '../model/form.ts';

/** Refusal of a request, or an answer that is no answer of the server. */
export class RefusedRequestError extends Error {
  override readonly name = 'RefusedRequestError';
  /** HTTP status. */
  readonly status: number;
  /** Mistakes in the fields of the request, as far as the server tells them. */
  readonly causes: readonly FieldCause[];

  constructor(status: number, message: string, causes: readonly FieldCause[] = []) {
    super(message);
    this.status = status;
    this.causes = causes;
  }
}

/** Returns the error for a refusal. A proxy before the server can answer with something else than a Status. */
export async function refusalOf(response: Response): Promise<RefusedRequestError> {
  const { status, statusText } = response;
  const text = await response.text();
  try {
    const { message, details } = JSON.parse(text) as { message?: unknown; details?: { causes?: unknown } };
    const causes = Array.isArray(details?.causes) ? (details.causes as FieldCause[]) : [];
    return new RefusedRequestError(
      status,
      typeof message === 'string' && message !== '' ? message : statusText,
      causes,
    );
  } catch {
    return new RefusedRequestError(status, `The server answers ${status} ${statusText}`);
  }
}
