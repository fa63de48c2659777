/** Reads the last part of a machine's log. Messages about the end of the machine's process contain this part. */
import { readPiece, sizeOf } from './input.ts';
import { listSegments, type LogName, logsWritten } from './logwriter.ts';

/**
 * Returns the last bytes of a log as text. The text begins at the position `from` or later, and has at most `limitBytes`. Call this function
 * when the hypervisor has ended. The function waits until the log writer has ended too.
 */
export async function logTail(folder: string, log: LogName, limitBytes: number, from = 0): Promise<string> {
  await logsWritten(folder);
  const tails = listSegments(folder, log).map(({ start, path }) => {
    const size = sizeOf(path);
    const begin = Math.max(0, from - start, size - limitBytes);
    return readPiece(path, begin, Math.max(0, size - begin));
  });
  return Buffer.concat(tails).subarray(-limitBytes).toString('utf8');
}
