/**
 * A stand-in for the operator's part of the power API: it takes the requests in the status of Servers as the operator does, and answers for a
 * controller that obeys at once. A test can give it another answer.
 */
import { pino } from 'pino';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { LastAction, PowerRequest, Server, ServerStatus } from '../../api/v1alpha1/server.ts';
import { timestamp } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { Informer } from '../../kube/informer.ts';

/** Fields of the action that the controller of the stand-in answers with, or nothing: then the request stays as it is. */
export type StandInAnswer = (
  server: Readonly<Server>,
  request: PowerRequest,
) => Partial<LastAction> | undefined | Promise<Partial<LastAction> | undefined>;

const OBEYED = { On: 'On', Off: 'Off', Reboot: 'On' } as const;

export class PowerStandIn {
  /** Requests in the order in which they were taken. */
  readonly taken: { server: string; action: string; by: string }[] = [];
  answer: StandInAnswer = () => ({});
  readonly #client: KubeClient;
  readonly #ended = new AbortController();
  readonly #seen = new Set<string>();

  constructor(client: KubeClient) {
    this.#client = client;
    const informer = new Informer(client, SERVERS, { logger: pino({ level: 'silent' }) });
    informer.cache.onChange(({ type, object }) => {
      const request = object.status?.request;
      if (type !== 'deleted' && request !== undefined && !this.#seen.has(request.id)) {
        this.#seen.add(request.id);
        void this.#take(object, request);
      }
    });
    informer.start(this.#ended.signal);
  }

  stop(): void {
    this.#ended.abort(new Error('the test has ended'));
  }

  async #take(server: Readonly<Server>, request: PowerRequest): Promise<void> {
    const { name } = server.metadata;
    const answer = await this.answer(server, request);
    if (answer === undefined) {
      return;
    }
    this.taken.push({ server: name, action: request.action, by: request.by });
    const now = timestamp(Date.now());
    const lastAction: LastAction = {
      ...request,
      result: 'Succeeded',
      message: '',
      startedAt: now,
      acceptedAt: now,
      completedAt: now,
      ...answer,
    };
    const power = lastAction.result === 'Succeeded' ? { power: OBEYED[request.action] } : {};
    await this.set(name, { ...power, lastAction });
  }

  /** Writes the status, as the operator does. */
  async set(name: string, status: Partial<ServerStatus>): Promise<void> {
    await this.#client.mergePatch(SERVERS, { name }, { status }, { subresource: 'status' });
  }
}
