/** Memory of large buffers, given back at once: at the collector's leisure there would be twice as much of it in use. */

/** Smaller ones may share their memory with others. */
const OWN_MEMORY_BYTES = 1024 * 1024;

/** The buffer is empty afterwards. Nothing may still read or write it, and nothing else be a part of it. */
export function release({ buffer, byteOffset }: Buffer): void {
  const isOwn = buffer instanceof ArrayBuffer && byteOffset === 0 && buffer.byteLength >= OWN_MEMORY_BYTES;
  if (isOwn) buffer.transfer(0);
}
