/** Reads objects from the API server, once for all callers that need the same object at the same time. */
import type { KubeClient } from './client.ts';
import { unlessMissing } from './errors.ts';
import { type KubeObject, pathOf, type Ref, type Resource } from './objects.ts';

/** Request that is under way. */
interface Reading {
  /** Resolves when the request has ended or failed. It never rejects. */
  readonly ended: Promise<void>;
  /** Result of the next request, for the callers that came during this request. */
  next?: Promise<KubeObject | undefined>;
}

/**
 * Sends read requests, and shares their results between callers. A caller never gets a result that is older than its call: if a request is
 * under way, the caller waits for the next request. Therefore many callers cause at most one request at a time for each object. A caller
 * waits for two requests at most.
 */
export class SharedReads {
  readonly #client: Pick<KubeClient, 'get'>;
  readonly #underWay = new Map<string, Reading>();

  constructor(client: Pick<KubeClient, 'get'>) {
    this.#client = client;
  }

  /**
   * Returns the object as it is stored now, or undefined if it does not exist. Other callers get the same object, so callers must not change
   * it.
   *
   * @throws ApiError or DeadlineError of the request
   */
  async get<T extends KubeObject>(type: Resource<T>, ref: Ref): Promise<T | undefined> {
    const path = pathOf(type, ref);
    const reading = this.#underWay.get(path);
    if (reading === undefined) {
      return await this.#begin(path, type, ref);
    }
    reading.next ??= reading.ended.then(async () => await this.#begin(path, type, ref));
    return (await reading.next) as T | undefined;
  }

  #begin<T extends KubeObject>(path: string, type: Resource<T>, ref: Ref): Promise<T | undefined> {
    const result = unlessMissing(this.#client.get(type, ref));
    const end = () => {
      if (reading.next === undefined) {
        this.#underWay.delete(path);
      }
    };
    const reading: Reading = { ended: result.then(end, end) };
    this.#underWay.set(path, reading);
    return result;
  }
}
