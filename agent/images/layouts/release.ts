/** Memory of large buffers, given back at once: at the collector's leisure there would be twice as much of it in use. */

/** Smaller ones may share their memory with others. */
const OWN_MEMORY_BYTES = 64 * 1024;

/** The buffer is empty afterwards; one that is a part of another stays. Nothing may still read or write it. */
export function release({ buffer, byteLength }: Buffer): void {
  const isOwn = buffer instanceof ArrayBuffer && buffer.byteLength === byteLength;
  if (isOwn && byteLength >= OWN_MEMORY_BYTES) {
    buffer.transfer(0);
  }
}
