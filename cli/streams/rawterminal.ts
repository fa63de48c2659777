/** The terminal of the user while a VM has it: keys reach the VM as they are, also Ctrl+C. */
export interface TerminalSize {
  readonly columns: number;
  readonly rows: number;
}

export class RawTerminal implements Disposable {
  readonly #restore = (): void => {
    process.stdin.setRawMode(false);
  };
  readonly #resize: () => void;

  /** `onSize` gets the size now and after each change. */
  constructor(onSize: (size: TerminalSize) => void) {
    const { stdin, stdout } = process;
    this.#resize = () => {
      const { columns, rows } = stdout;
      // An output that is no terminal has no size.
      if (columns > 0 && rows > 0) {
        onSize({ columns, rows });
      }
    };
    stdin.setRawMode(true);
    // The process may also end elsewhere, for example when its output is closed.
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
