/** Creates the logger of a program, which writes lines of JSON to standard output. */
import { destination, type Logger, type LoggerOptions, pino } from 'pino';

const STANDARD_OUTPUT = 1;
/** Limit in bytes of the lines that wait to be written. Ten thousand lines fit into it. */
const WAITING_BYTES = 4 * 1024 * 1024;

/**
 * Returns a logger that does not harm its program if standard output cannot be written, for example because its disk is full. Lines wait
 * until they can be written, and lines over the limit are lost.
 */
export function programLogger(options: LoggerOptions): Logger {
  let isFailing = false;
  // At the end of the process, pino writes the waiting lines, and tries again for ever if the disk is full. So this listener, which comes
  // first, gives up these lines.
  process.once('exit', () => {
    if (isFailing) {
      output.destroy();
    }
  });
  // With a length of 0, `flush` does nothing.
  const output = destination({ dest: STANDARD_OUTPUT, minLength: 1, maxLength: WAITING_BYTES, sync: false });
  // Without this listener, the error would end the process.
  output.on('error', () => {
    isFailing = true;
  });
  output.on('write', () => {
    isFailing = false;
  });
  // A dropped line does not begin a write, so without this call nothing would be written any more.
  output.on('drop', () => output.flush());
  return pino(options, output);
}
