/** Sends a file to the task of an upload. `transfer.ts` in the folder `api` describes the protocol. */
import { createHash } from 'node:crypto';
import type { Duplex } from 'node:stream';
import {
  ANSWER_LIMITS,
  LENGTH_BYTES,
  PIECE_BYTES,
  type TransferAnswer,
  transferAnswerSchema,
} from '../../api/v1alpha1/transfer.ts';
import { parseJson } from '../../base/json.ts';

const NO_ANSWER = 'The host ended the transfer without an answer';
/**
 * Time limit in milliseconds for two steps of the host: to read one piece of the file, and to answer after the last piece. The limit is
 * long, because before its answer, the host must wait until the whole file is on its disk. On a slow disk, this takes minutes.
 */
const HOST_MILLISECONDS = 600_000;

/** Error when the host ended the connection without an answer, for example because its agent stopped. */
export class BrokenTransferError extends Error {
  override readonly name = 'BrokenTransferError';
}

/**
 * Sends the file and returns the answer of the host. The host can answer before it has the whole file, for example if its disk is full.
 * `sha256` is the digest that the file must have, in hexadecimal digits. If `sha256` is undefined, the host gets the digest of the sent
 * bytes. Before this function returns or throws, it closes the connection.
 *
 * @throws BrokenTransferError when the host sends no answer, or the error of `file` when the file cannot be read.
 */
export async function sendFile(
  connection: Duplex,
  file: AsyncIterable<Buffer>,
  sha256: string | undefined,
): Promise<TransferAnswer> {
  const transfer: Transfer = { connection, isWhole: false };
  const answer = answerOn(transfer);
  // If the file cannot be read, nobody waits for `answer`. This line prevents an unhandled rejection of `answer`.
  answer.catch(() => undefined);
  const sent = send(transfer, file, sha256);
  // If the host answers before it has the whole file, nobody waits for `sent`, because the client might never send the rest. This line
  // prevents an unhandled rejection of `sent`.
  sent.catch(() => undefined);
  try {
    return await Promise.race([
      answer,
      sent.then(
        async () => await inTime(connection, answer),
        async (error: unknown) => await afterFailure(answer, error),
      ),
    ]);
  } finally {
    connection.destroy();
  }
}

interface Transfer {
  readonly connection: Duplex;
  /** Whether the whole file has been sent. */
  isWhole: boolean;
}

/**
 * Returns the host's answer after the sending has failed with `error`. A host that refuses the file sends an answer with the cause before
 * it closes the connection. `error` does not contain this cause.
 *
 * @throws `error` when the file could not be read. @throws BrokenTransferError when the host sent no answer.
 */
async function afterFailure(answer: Promise<TransferAnswer>, error: unknown): Promise<TransferAnswer> {
  if (error instanceof BrokenTransferError) {
    return await answer;
  }
  throw error;
}

async function send(
  transfer: Transfer,
  file: AsyncIterable<Buffer>,
  sha256: string | undefined,
): Promise<void> {
  const { connection } = transfer;
  const hash = createHash('sha256');
  for await (const chunk of file) {
    hash.update(chunk);
    for (let at = 0; at < chunk.length; at += PIECE_BYTES) {
      const piece = chunk.subarray(at, at + PIECE_BYTES);
      await inTime(connection, write(connection, piece.length, piece));
    }
  }
  transfer.isWhole = true;
  const digest = sha256 === undefined ? hash.digest() : Buffer.from(sha256, 'hex');
  await inTime(connection, write(connection, 0, digest));
}

/** Waits for `work`. If the host needs too long, the connection is destroyed, so that `work` fails. */
async function inTime<T>(connection: Duplex, work: Promise<T>): Promise<T> {
  const late = setTimeout(() => connection.destroy(), HOST_MILLISECONDS);
  try {
    return await work;
  } finally {
    clearTimeout(late);
  }
}

/**
 * Sends one piece and resolves when its bytes have left this process. The calling function waits for this before it reads more of the file.
 * Therefore a slow host only slows down the client, and the file does not fill the memory.
 */
async function write(connection: Duplex, length: number, bytes: Buffer): Promise<void> {
  const head = Buffer.alloc(LENGTH_BYTES);
  head.writeUInt32BE(length);
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  connection.cork();
  // The callback of the second `write` reports the errors of both calls.
  connection.write(head, () => undefined);
  connection.write(bytes, (cause) =>
    cause ? reject(new BrokenTransferError(NO_ANSWER, { cause })) : resolve(),
  );
  connection.uncork();
  await promise;
}

/** Reads the answer. The host keeps the connection open after its answer, so this function does not wait for the end of the connection. */
async function answerOn(transfer: Transfer): Promise<TransferAnswer> {
  let bytes = Buffer.alloc(0);
  let cause: unknown;
  try {
    const chunks = transfer.connection.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>;
    for await (const chunk of chunks) {
      bytes = Buffer.concat([bytes, chunk]);
      const answer = parseAnswer(bytes);
      if (answer !== undefined && (answer.reason !== undefined || transfer.isWhole)) {
        return answer;
      }
      if (answer !== undefined || bytes.length > ANSWER_LIMITS.bytes) {
        break;
      }
    }
  } catch (error) {
    cause = error;
  }
  throw new BrokenTransferError(NO_ANSWER, { cause });
}

function parseAnswer(bytes: Buffer): TransferAnswer | undefined {
  try {
    return transferAnswerSchema.parse(parseJson(bytes, ANSWER_LIMITS));
  } catch {
    // The answer is not complete yet.
    return undefined;
  }
}
