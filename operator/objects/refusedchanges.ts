/** Records Events about changes that the API server refuses: changes of an existing object, of its Pod or of its Job. */
import { type ApiError, isObjectRefused } from '../../kube/errors.ts';
import { keyOf, type KubeObject } from '../../kube/objects.ts';
import { type Recorder, warning } from './events.ts';
import { refusalMessage } from './refusal.ts';

/**
 * Time in milliseconds after which a refusal that lasts is recorded again. By default, the API server keeps an Event for an hour
 * (`--event-ttl`), so a new Event exists before the last one is gone.
 */
const REPEAT_MILLISECONDS = 30 * 60_000;

export interface RefusedChangesOptions {
  readonly recorder: Recorder;
  /** Kind of the objects that the operator creates for the object. */
  readonly dependent: 'Pod' | 'Job';
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

/**
 * Records one Event for each refusal. The operator repeats a refused change many times. An Event for each attempt would use up the rate
 * limit of the object, and other Events would be lost.
 */
export class RefusedChanges {
  readonly #options: RefusedChangesOptions;
  /** Last recorded message of each object whose last change was refused, and its time. The map's key is the key of the object. */
  readonly #recorded = new Map<string, { readonly words: string; readonly at: number }>();

  constructor(options: RefusedChangesOptions) {
    this.#options = options;
  }

  /** Records an Event if the refusal is new. `refused` is undefined if the last reconcile of the object had no refused change. */
  record(object: KubeObject, refused: ApiError | undefined): void {
    const key = keyOf(object);
    if (refused === undefined) {
      this.forget(key);
      return;
    }
    const { recorder, dependent, clock } = this.#options;
    const last = this.#recorded.get(key);
    const words = refusalMessage(refused, last?.words);
    const at = clock();
    if (words !== last?.words || at - last.at >= REPEAT_MILLISECONDS) {
      this.#recorded.set(key, { words, at });
      const message = `The API server refused a change of the ${object.kind} or its ${dependent}: ${words}`;
      recorder.event(object, warning(`${dependent}Refused`, 'Changing', message));
    }
  }

  /**
   * Waits for a reconcile of the object that ends at the first refused change. Records an Event if that refusal is new. @throws the error of
   * the reconcile.
   */
  async during<T>(object: KubeObject, reconcile: Promise<T>): Promise<T> {
    try {
      const result = await reconcile;
      this.forget(keyOf(object));
      return result;
    } catch (error) {
      if (isObjectRefused(error)) {
        this.record(object, error);
      }
      throw error;
    }
  }

  /** Forgets the refusal of an object, for example after the object was deleted. */
  forget(key: string): void {
    this.#recorded.delete(key);
  }
}
