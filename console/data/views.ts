/** Views that are rendered again after changes, at most once per second together. */
import { Pace } from '../model/pace.ts';

/** Shortest time in milliseconds between two renders for changes. A busy fleet changes hundreds of times in a second. */
const RENDER_MILLISECONDS = 1_000;

export class Views {
  readonly #renders = new Set<() => void>();
  readonly #pace = new Pace({
    intervalMilliseconds: RENDER_MILLISECONDS,
    act: () => this.#renders.forEach((render) => render()),
    now: () => performance.now(),
    schedule: setTimeout,
  });

  /** Calls `render` after changes, at most once per second. Returns a function that ends this. */
  subscribe(render: () => void): () => void {
    this.#renders.add(render);
    return () => this.#renders.delete(render);
  }

  /** Records a change. */
  changed(): void {
    this.#pace.request();
  }
}
