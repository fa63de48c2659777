/** Puts the terminal of the user into raw mode for a session with a VM. Then the VM gets all keys, including Ctrl+C. */
import { RawMode } from '../rawmode.ts';

export interface TerminalSize {
  readonly columns: number;
  readonly rows: number;
}

export class RawTerminal implements Disposable {
  readonly #rawMode: RawMode;
  readonly #resize: () => void;

  /** `onSize` gets the present size of the terminal at once, and the new size after each change. */
  constructor(onSize: (size: TerminalSize) => void) {
    const { stdout } = process;
    this.#resize = () => {
      const { columns, rows } = stdout;
      // If the output is not a terminal, it has no size.
      if (columns > 0 && rows > 0) {
        onSize({ columns, rows });
      }
    };
    this.#rawMode = new RawMode();
    stdout.on('resize', this.#resize);
    this.#resize();
  }

  [Symbol.dispose](): void {
    process.stdout.off('resize', this.#resize);
    this.#rawMode[Symbol.dispose]();
  }
}
