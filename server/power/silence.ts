/** Keeps connections whose requests get no answer. */
import type { Socket } from 'node:net';

/**
 * Time in milliseconds for which such a connection stays open. A program that guesses passwords waits for this time, and a person sees that
 * the server is there.
 */
const SILENCE_MILLISECONDS = 30_000;
/** Largest number of such connections. Others are closed at once, the oldest first. */
const CONNECTIONS = 1_000;

export class SilentConnections {
  readonly #open = new Set<Socket>();

  /** Keeps the connection without an answer, and closes it after a time. */
  keep(socket: Socket): void {
    if (socket.destroyed || this.#open.has(socket)) {
      return;
    }
    this.#open.add(socket);
    const timer = setTimeout(() => socket.destroy(), SILENCE_MILLISECONDS).unref();
    socket.once('close', () => {
      clearTimeout(timer);
      this.#open.delete(socket);
    });
    const [oldest] = this.#open;
    if (oldest !== undefined && this.#open.size > CONNECTIONS) {
      this.#open.delete(oldest);
      oldest.destroy();
    }
  }
}
