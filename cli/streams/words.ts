/** What a host says about a stream. */
import type { Readable } from 'node:stream';

/** Longest text in bytes that is kept. Hosts say one or two sentences, or send a Status of some hundred bytes. */
const LIMIT_BYTES = 16 * 1024;

/** Returns the text of the stream without its first bytes. Never rejects: a stream that breaks off has no more text. */
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
    // What came before counts.
  }
  return Buffer.concat(chunks).subarray(skippedBytes, LIMIT_BYTES).toString();
}
