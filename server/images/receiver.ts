/** Receives a file from the task of a download. `transfer.ts` in the folder `api` describes the protocol. */
import { Readable } from 'node:stream';
import { ANSWER_LIMITS, type TransferHead, transferHeadSchema } from '../../api/v1alpha1/transfer.ts';
import { StatusError } from '../http/errors.ts';
import { parseJson } from '../../base/json.ts';

const LINE_END = '\n';
const BROKEN = 'The host ended the transfer before the end of the file. Try again';

export interface ReceivedFile {
  readonly bytes: number;
  /** Stream with the bytes of the file. It fails if fewer bytes arrive than the host announced. When it ends, it closes the connection. */
  readonly file: Readable;
}

/**
 * Resolves when the host begins to send the file.
 *
 * @throws StatusError 503 when the host refuses, or ends the connection before the first byte.
 */
export async function receiveFile(connection: Readable): Promise<ReceivedFile> {
  // The iterator over the received data reports an error only during a read. Without this listener, an error at another time would end the
  // process.
  connection.on('error', () => undefined);
  const chunks = connection.iterator({ destroyOnReturn: false }) as AsyncIterator<Buffer>;
  const { line, rest } = await firstLine(chunks);
  const head = headIn(line);
  if (!('bytes' in head)) {
    const { reason, message } = head;
    throw new StatusError(503, message, { causes: [{ reason, message }] });
  }
  const { bytes } = head;
  return { bytes, file: Readable.from(content(connection, chunks, { rest, bytes }), { objectMode: false }) };
}

async function firstLine(chunks: AsyncIterator<Buffer>): Promise<{ line: string; rest: Buffer }> {
  let start: Buffer = Buffer.alloc(0);
  while (start.length < ANSWER_LIMITS.bytes) {
    const chunk = await next(chunks);
    if (chunk === undefined) {
      // A refusal does not need a line end, because the host closes the connection after it.
      return { line: start.toString('utf8'), rest: Buffer.alloc(0) };
    }
    start = Buffer.concat([start, chunk]);
    const end = start.indexOf(LINE_END);
    if (end !== -1) {
      return { line: start.toString('utf8', 0, end), rest: start.subarray(end + LINE_END.length) };
    }
  }
  throw new StatusError(503, BROKEN);
}

function headIn(line: string): TransferHead {
  try {
    return transferHeadSchema.parse(parseJson(line, ANSWER_LIMITS));
  } catch {
    throw new StatusError(503, BROKEN);
  }
}

/** Returns the next bytes. The result is undefined when the connection has ended, for any reason. */
async function next(chunks: AsyncIterator<Buffer>): Promise<Buffer | undefined> {
  try {
    const { value, done } = await chunks.next();
    return done === true ? undefined : value;
  } catch {
    return undefined;
  }
}

async function* content(
  connection: Readable,
  chunks: AsyncIterator<Buffer>,
  { rest, bytes }: { rest: Buffer; bytes: number },
): AsyncGenerator<Buffer> {
  try {
    let chunk: Buffer | undefined = rest;
    for (let left = bytes; ; ) {
      const part = chunk.subarray(0, left);
      left -= part.length;
      if (part.length > 0) {
        yield part;
      }
      if (left === 0) {
        return;
      }
      chunk = await next(chunks);
      if (chunk === undefined) {
        throw new StatusError(503, BROKEN);
      }
    }
  } finally {
    connection.destroy();
  }
}
