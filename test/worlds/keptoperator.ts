/**
 * An operator that is started again whenever it ends, as by a Deployment. An operator ends if its lease expires while the API
 * server is unreachable.
 */
import type { Cluster, OperatorProcess } from '../../hack/cluster/index.ts';

type OperatorOptions = NonNullable<Parameters<Cluster['startOperator']>[0]>;

export class KeptOperator {
  readonly #start: () => Promise<OperatorProcess>;
  readonly #over = Promise.withResolvers<'over'>();
  #running: Promise<void> = Promise.resolve();
  #current: OperatorProcess;

  private constructor(current: OperatorProcess, start: () => Promise<OperatorProcess>) {
    this.#current = current;
    this.#start = start;
  }

  static async start(cluster: Cluster, options: OperatorOptions): Promise<KeptOperator> {
    const start = (): Promise<OperatorProcess> => cluster.startOperator(options);
    const kept = new KeptOperator(await start(), start);
    kept.#running = kept.#keep();
    return kept;
  }

  /** Stops the operator. @throws Error when a restart of the operator failed. */
  async stop(): Promise<void> {
    this.#over.resolve('over');
    await this.#running;
    await this.#current.stop();
  }

  async #keep(): Promise<void> {
    while ((await Promise.race([this.#current.stopped, this.#over.promise])) !== 'over') {
      this.#current = await this.#start();
    }
  }
}
