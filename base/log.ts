/** Creates the logger of a program, which writes lines of JSON to standard output. */
import { destination, type Logger, type LoggerOptions, pino } from 'pino';

const STANDARD_OUTPUT = 1;
/** Limit in bytes of the lines that wait to be written. Ten thousand lines fit into it. */
const WAITING_BYTES = 4 * 1024 * 1024;

/**
 * Returns a logger that does not harm its program if standard output cannot be written, for example because its disk is full. Lines wait
 * until they can be written, and lines over the limit are lost. Each line is written at once and by this thread. So the lines keep their
 * order, and the end of the process loses none of them.
 */
export function programLogger(options: LoggerOptions): Logger {
  // With a length of 0, `flush` does nothing. With `sync: false`, pino writes the waiting lines at the end of the process, and tries again
  // for ever if they cannot be written.
  const output = destination({ dest: STANDARD_OUTPUT, minLength: 1, maxLength: WAITING_BYTES, sync: true });
  // Without this listener, the error would end the process. The next line tries again.
  output.on('error', () => undefined);
  // A dropped line does not begin a write, so without this call nothing would be written any more.
  output.on('drop', () => output.flush());
  return pino(options, output);
}
