/** Records Events about changes that the API server refuses: changes of an existing object or of its Pod. */
import type { ApiError } from '../../kube/errors.ts';
import { keyOf, type KubeObject } from '../../kube/objects.ts';
import { type Recorder, warning } from './events.ts';
import { refusalMessage } from './refusal.ts';

/**
 * Records one Event for each refusal. The operator repeats a refused change many times. An Event for each attempt would use up the rate
 * limit of the object, and other Events would be lost.
 */
export class RefusedChanges {
  readonly #recorder: Recorder;
  /** Last recorded message of each object whose last change was refused. The map's key is the key of the object. */
  readonly #recorded = new Map<string, string>();

  constructor(recorder: Recorder) {
    this.#recorder = recorder;
  }

  /** Records an Event if the refusal is new. `refused` is undefined if the last reconcile of the object had no refused change. */
  record(object: KubeObject, refused: ApiError | undefined): void {
    const key = keyOf(object);
    if (refused === undefined) {
      this.forget(key);
      return;
    }
    const last = this.#recorded.get(key);
    const words = refusalMessage(refused, last);
    if (words !== last) {
      this.#recorded.set(key, words);
      const message = `The API server refused a change of the ${object.kind} or its Pod: ${words}`;
      this.#recorder.event(object, warning('PodRefused', 'Changing', message));
    }
  }

  /** Forgets the refusal of an object, for example after the object was deleted. */
  forget(key: string): void {
    this.#recorded.delete(key);
  }
}
