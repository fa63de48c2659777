/**
 * Puts the user's terminal into raw mode. In this mode, the command gets every key at once, including Ctrl+C, and the terminal does not
 * show the keys. `dispose` ends the raw mode. If the process exits earlier, for example after a second signal, its exit ends the raw mode.
 */
export class RawMode implements Disposable {
  readonly #restore = (): void => {
    process.stdin.setRawMode(false);
  };

  constructor() {
    process.stdin.setRawMode(true);
    process.on('exit', this.#restore);
  }

  [Symbol.dispose](): void {
    process.off('exit', this.#restore);
    this.#restore();
  }
}
