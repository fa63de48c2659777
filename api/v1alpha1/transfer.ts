/**
 * The protocol by which a caller sends a file to the task of an upload. The caller sends `POST pods/attach` with an upgrade to {@link
 * TRANSFER_PROTOCOL}. The API server passes the upgrade and all later bytes to the agent of the host unread.
 *
 * The caller sends pieces: four bytes with the length of the piece, big endian, then the piece. After the last piece the caller sends the
 * length 0, then the SHA-256 of the file. A broken connection therefore never looks like the end of a file. The agent sends one {@link
 * transferAnswerSchema} as JSON, at any time, and the caller then closes the connection.
 *
 * The task of a download serves several callers, who use the same upgrade. To each of them the agent sends one line with a {@link
 * transferHeadSchema} as JSON, then exactly the announced number of bytes, and closes the connection. If a caller gets fewer bytes, the
 * download has failed.
 */
import * as z from 'zod';

/** Name of the protocol in the header Upgrade. If the protocol changes, its name changes. */
export const TRANSFER_PROTOCOL = 'berth-transfer-v1';
/** Length of the longest piece in bytes. */
export const PIECE_BYTES = 1024 * 1024;
/** Length of the number before each piece, in bytes. */
export const LENGTH_BYTES = 4;
/** Length of the digest after the last piece, in bytes. */
export const DIGEST_BYTES = 32;
/** Length of the longest answer of the agent in bytes. */
export const ANSWER_BYTES = 8 * 1024;

export const transferAnswerSchema = z.object({
  /** Reason of the failure. If it is absent, the host has the whole file. */
  reason: z.string().max(128).optional(),
  message: z.string().max(4096).optional(),
});
export type TransferAnswer = z.infer<typeof transferAnswerSchema>;

/** Start of a download. It is at most {@link ANSWER_BYTES} long, with the end of the line. */
export const transferHeadSchema = z.union([
  z.object({ bytes: z.number().int().positive() }),
  transferAnswerSchema.required(),
]);
export type TransferHead = z.infer<typeof transferHeadSchema>;
