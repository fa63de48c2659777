/** Lines of the log of a VM: a time, and the text that the guest has written. */
import { SerialTerminal } from './terminal.ts';

export interface LogLine {
  /**
   * Time at which the host got the line, as RFC 3339 with milliseconds. Earlier times are smaller texts. All lines that the host got at once
   * have the same time.
   */
  readonly time: string;
  readonly text: string;
}

const LINE = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z) (.*)$/s;
/** Terminal that takes out what is no text. Making one for each line would take most of the time. */
const terminal = new SerialTerminal();

/** Parses a line of the log. Returns undefined for others, for example an empty one. */
export function lineOfLog(line: string): LogLine | undefined {
  const [, time, text = ''] = LINE.exec(line) ?? [];
  return time === undefined ? undefined : { time, text: plainText(text) };
}

/**
 * Returns the text that a terminal would show. Colours and other commands for terminals are left out, and so are characters that hide or reorder
 * others. Of a text that was written over, the last one stays.
 */
function plainText(text: string): string {
  terminal.write(`${RESET}${text}`);
  const lines = terminal.grid.lines.map(({ runs }) => runs.map((run) => run.text).join(''));
  return lines.join('').trimEnd();
}

/** Ends a command that the line before has begun, and makes the screen empty. */
const RESET = '\u001b\\\u001bc';
