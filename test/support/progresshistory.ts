/** A record of the values of `status.progressPercent` of objects of one kind, from a watch that begins before the first object. */
import { pino } from 'pino';
import type { KubeClient } from '../../kube/client.ts';
import { Informer } from '../../kube/informer.ts';
import type { KubeObject, Resource } from '../../kube/objects.ts';

interface HasProgress extends KubeObject {
  status?: { progressPercent?: number | undefined } | undefined;
}

export class ProgressHistory implements Disposable {
  readonly #stopping = new AbortController();
  readonly #percents = new Map<string, number[]>();

  static async start<T extends HasProgress>(
    client: KubeClient,
    resource: Resource<T>,
  ): Promise<ProgressHistory> {
    const history = new ProgressHistory();
    const informer = new Informer(client, resource, { logger: pino({ level: 'silent' }) });
    informer.cache.onChange(({ object }) => history.#record(object));
    informer.start(history.#stopping.signal);
    await informer.synced;
    return history;
  }

  /** Returns the percentages of the object in their order. Equal percentages in a row appear once. */
  of(name: string): readonly number[] {
    return this.#percents.get(name) ?? [];
  }

  [Symbol.dispose](): void {
    this.#stopping.abort(new Error('the test is over'));
  }

  #record({ metadata: { name }, status }: HasProgress): void {
    const percent = status?.progressPercent;
    const percents = this.#percents.get(name) ?? [];
    if (percent === undefined || percents.at(-1) === percent) {
      return;
    }
    this.#percents.set(name, [...percents, percent]);
  }
}
