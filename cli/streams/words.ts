/** Reads the message that a host sends about a stream. */
import type { Readable } from 'node:stream';

/** Largest part of a message that is kept, in bytes. Hosts send one or two sentences, or a Status of a few hundred bytes. */
const LIMIT_BYTES = 16 * 1024;

/**
 * Resolves with the text of the stream, without the first `skippedBytes`. Never rejects. If the stream fails, the result is the text before
 * the failure.
 */
export async function wordsIn(stream: Readable, skippedBytes = 0): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      if (bytes < LIMIT_BYTES) {
        chunks.push(chunk);
        bytes += chunk.length;
      }
    }
  } catch {
    // If the stream fails, the result is the text that arrived before.
  }
  return Buffer.concat(chunks).subarray(skippedBytes, LIMIT_BYTES).toString();
}
