/** Reads the last part of a machine's log. Messages about the end of the machine's process contain this part. */
import { open, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { isMissing, undefinedIf } from '../../base/errors.ts';
import { appendedLog, listSegments, type LogName } from './logwriter.ts';

/**
 * Returns the last bytes of a log as text. The text begins at the position `from` or later, and has at most `limitBytes`. Before the call,
 * wait with `logsWritten` until the log writer has ended.
 */
export async function logTail(folder: string, log: LogName, limitBytes: number, from = 0): Promise<string> {
  const segments = listSegments(folder, log);
  const files = segments.length > 0 ? segments : [{ start: 0, path: join(folder, appendedLog(log)) }];
  let tail = Buffer.alloc(0);
  for (const { start, path } of files) {
    const next = await tailOf(path, limitBytes, Math.max(0, from - start));
    tail = Buffer.concat([tail, next]).subarray(-limitBytes);
  }
  return tail.toString('utf8');
}

/** Returns the position after the last byte of a log. */
export async function logEnd(folder: string, log: LogName): Promise<number> {
  const last = listSegments(folder, log).at(-1);
  const found = last && (await undefinedIf(isMissing, stat(last.path)));
  return last === undefined ? 0 : last.start + (found?.size ?? 0);
}

async function tailOf(path: string, limitBytes: number, from: number): Promise<Buffer> {
  const handle = await undefinedIf(isMissing, open(path, 'r'));
  if (handle === undefined) {
    return Buffer.alloc(0);
  }
  try {
    const { size } = await handle.stat();
    const start = Math.max(from, size - limitBytes);
    const length = Math.max(0, size - start);
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(length), 0, length, start);
    return buffer.subarray(0, bytesRead);
  } finally {
    await handle.close();
  }
}
