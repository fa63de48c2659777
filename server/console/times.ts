/**
 * How long jobs waited and ran in the last 24 hours. The operator measures it, and the server tells it to those who may list the VMs. It reads
 * the numbers from Prometheus if it is configured, and else from what the operator keeps.
 */
import type { FastifyRequest } from 'fastify';
import * as z from 'zod';
import { type JobTimes, parseJobTimes } from '../../api/v1alpha1/jobtimes.ts';
import { JOB_TIMES } from '../../api/v1alpha1/names.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { TimesAnswer } from '../../api/http/consoletimes.ts';
import { readData } from '../../kube/configmapdata.ts';
import type { App } from '../http/app.ts';
import { namespaceParams } from '../http/namespaces.ts';
import type { Services } from '../services.ts';
import { PrometheusReader, refusalText } from './prometheus.ts';

const TIMES_PATH = '/console/times';
/** Time in milliseconds for which a read is used again. The operator writes at most once a minute. */
const KEEP_MILLISECONDS = 10_000;

/** Adds the routes. They hide from the OpenAPI document, because they serve only the page of the same release. */
export function addConsoleTimes(app: App, { own, config }: Services): void {
  const stored = new StoredTimes(
    async () => await readData(own.client, { namespace: config.namespaces.system, name: JOB_TIMES }),
  );
  const prometheus = config.prometheus && new PrometheusReader(config.prometheus);
  const answer = async (request: FastifyRequest, namespace?: string): Promise<TimesAnswer> => {
    const scope = namespace === undefined ? {} : { namespace };
    await own.rights.require(request.headers, { verb: 'list', resource: VMS.plural, ...scope });
    if (prometheus === undefined) {
      return await kept(namespace);
    }
    try {
      const since = namespace === undefined ? {} : { since: beginOf(namespace) };
      return { prometheus: await prometheus.read({ ...scope, ...since }, request.log) };
    } catch (error) {
      return { refusal: refusalText(error), ...(await kept(namespace)) };
    }
  };
  /** Returns what the operator keeps. */
  const kept = async (namespace: string | undefined): Promise<TimesAnswer> => {
    const documents = await stored.read();
    const names = namespace === undefined ? Object.keys(documents) : [namespace];
    return { documents: names.flatMap((name) => timesOf(name, documents[name] ?? '') ?? []) };
  };
  /** While no operator leads, the document of a deleted namespace stays, and another one can have got its name. */
  const timesOf = (name: string, text: string): JobTimes | undefined => {
    const times = parseJobTimes(text);
    return times !== undefined && times.namespaceUid === own.watches.namespace(name)?.metadata.uid
      ? times
      : undefined;
  };
  /** Returns the time in milliseconds at which the namespace was created. A namespace that is not known yet begins now. */
  const beginOf = (name: string): number => {
    const created = Date.parse(own.watches.namespace(name)?.metadata.creationTimestamp ?? '');
    return Number.isNaN(created) ? Date.now() : created;
  };
  const hidden = { hide: true, response: { 200: z.any() } } as const;
  app.get(TIMES_PATH, { exposeHeadRoute: false, schema: hidden }, async (request) => await answer(request));
  app.get(
    `${TIMES_PATH}/namespaces/:namespace`,
    { exposeHeadRoute: false, schema: { ...hidden, params: namespaceParams } },
    async (request) => await answer(request, request.params.namespace),
  );
}

/** The documents of all namespaces, which one read serves to many pages. */
class StoredTimes {
  readonly #read: () => Promise<Readonly<Record<string, string>>>;
  #last: { readonly at: number; readonly documents: Promise<Readonly<Record<string, string>>> } | undefined;

  constructor(read: () => Promise<Readonly<Record<string, string>>>) {
    this.#read = read;
  }

  /** @throws ApiError, and the next call reads again. */
  async read(): Promise<Readonly<Record<string, string>>> {
    const now = performance.now();
    if (this.#last === undefined || now - this.#last.at > KEEP_MILLISECONDS) {
      this.#last = { at: now, documents: this.#read() };
    }
    try {
      return await this.#last.documents;
    } catch (error) {
      this.#last = undefined;
      throw error;
    }
  }
}
