/**
 * Raw mode of the user's terminal. The command then gets every key at once, including Ctrl+C, and the terminal does not show the keys. The
 * raw mode ends with `dispose`, or with the process if other code ends it. For example, a second signal ends the process.
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
