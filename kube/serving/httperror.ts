/**
 * Error with which a handler refuses a request: the caller gets this status and this message for people. The error is not logged.
 */
export class HttpError extends Error {
  override readonly name: string = 'HttpError';
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}
