/** Puts the terminal of the user into raw mode for a session with a VM. Then the VM gets all keys, including Ctrl+C. */
export interface TerminalSize {
  readonly columns: number;
  readonly rows: number;
}

export class RawTerminal implements Disposable {
  readonly #restore = (): void => {
    process.stdin.setRawMode(false);
  };
  readonly #resize: () => void;

  /** `onSize` gets the present size of the terminal at once, and the new size after each change. */
  constructor(onSize: (size: TerminalSize) => void) {
    const { stdin, stdout } = process;
    this.#resize = () => {
      const { columns, rows } = stdout;
      // If the output is not a terminal, it has no size.
      if (columns > 0 && rows > 0) {
        onSize({ columns, rows });
      }
    };
    stdin.setRawMode(true);
    // Other code can end the process, for example when the output of the process is closed. The terminal must leave raw mode in this case,
    // too.
    process.on('exit', this.#restore);
    stdout.on('resize', this.#resize);
    this.#resize();
  }

  [Symbol.dispose](): void {
    process.stdout.off('resize', this.#resize);
    process.off('exit', this.#restore);
    this.#restore();
  }
}
