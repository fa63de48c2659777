/**
 * The protocols with which a caller sends a file to the task of an upload, or receives a file from the task of a download. The caller sends
 * `POST pods/attach` with an upgrade to {@link TRANSFER_PROTOCOL}. The API server passes the upgrade and all later bytes to the agent of
 * the host, and does not read them.
 *
 * In an upload, the caller sends the file in pieces. Before each piece, the caller sends the length of the piece as four bytes, big endian.
 * After the last piece, the caller sends the length 0, then the SHA-256 of the file. Therefore a broken connection never looks like the end
 * of a file. The agent can answer at any time with one {@link transferAnswerSchema} as JSON, and the caller then closes the connection.
 *
 * In a download, one task serves several callers. The agent first sends each caller one line with a {@link transferHeadSchema} as JSON.
 * Then it sends exactly the announced number of bytes, and closes the connection. If a caller gets fewer bytes, the download has failed.
 */
import * as z from 'zod';
import { type JsonLimits } from '../../base/json.ts';

/** Name of the protocol in the header Upgrade. A changed protocol needs a new name. */
export const TRANSFER_PROTOCOL = 'berth-transfer-v1';
/** Largest length of a piece, in bytes. */
export const PIECE_BYTES = 1024 * 1024;
/** Length in bytes of the number that comes before each piece. */
export const LENGTH_BYTES = 4;
/** Length in bytes of the digest that comes after the last piece. */
export const DIGEST_BYTES = 32;
/** Largest length of the agent's answer, in bytes. */
export const ANSWER_LIMITS: JsonLimits = { bytes: 8 * 1024, items: 64 };

export const transferAnswerSchema = z.object({
  /** Reason of the failure. If it is absent, the host has the whole file. */
  reason: z.string().max(128).optional(),
  message: z.string().max(4096).optional(),
});
export type TransferAnswer = z.infer<typeof transferAnswerSchema>;

/** First line of a download. With its line end, it fits into {@link ANSWER_LIMITS}. */
export const transferHeadSchema = z.union([
  z.object({ bytes: z.number().int().positive() }),
  transferAnswerSchema.required(),
]);
export type TransferHead = z.infer<typeof transferHeadSchema>;
