/** The calls of GitHub's API for scale sets. Method, path, query, headers and body of each request are those of GitHub's own client. */
import type * as z from 'zod';
import { type JsonLimits, JsonError, parseJson } from '../../base/json.ts';
import type { GitHubAddress } from './address.ts';
import {
  agentsSchema,
  createdSetSchema,
  groupsSchema,
  itemsSchema,
  jitSchema,
  type JobItem,
  messageSchema,
  runnersPageSchema,
  type ScaleSet,
  scaleSetsSchema,
  type Session,
  sessionSchema,
} from './answers.ts';
import { GitHubError, isAnswer } from './error.ts';
import { type Exchange, readBody, type GitHubRequest } from './exchange.ts';
import type { Tokens } from './tokens.ts';
import type { Statistics } from '../../api/v1alpha1/runnerset.ts';

const API_VERSION = '6.0-preview';
/** Time limit of a long poll in milliseconds. GitHub answers after 50 s without news. */
const POLL_MILLISECONDS = 90_000;
/** Number of runners on one page, the most that GitHub allows, and largest number of pages. */
const PAGE = 100;
const PAGES = 100;
const NEW_SESSION = '00000000-0000-0000-0000-000000000000';
/** Value of a time that is not set, as GitHub's own client writes it. */
const NO_TIME = '0001-01-01T00:00:00Z';
/** Folder of the work of a runner, below the folder of the runner. */
const WORK_FOLDER = '_work';
/** Limits of the items of a message, which are a JSON text of their own. */
const ITEMS: JsonLimits = { bytes: 1024 * 1024, items: 32_768 };

export interface QueueMessage {
  readonly id: number;
  readonly statistics: Statistics | undefined;
  readonly items: readonly JobItem[];
}

/** A runner that GitHub knows. */
export interface KnownRunner {
  readonly id: number;
  readonly name: string;
  readonly isOnline: boolean;
  readonly isBusy: boolean;
}

export interface GitHubOptions {
  readonly exchange: Exchange;
  readonly tokens: Tokens;
  readonly address: GitHubAddress;
}

/** Each method throws a {@link GitHubError} when GitHub refuses or does not answer. */
export class GitHub {
  readonly #exchange: Exchange;
  readonly #tokens: Tokens;
  readonly #address: GitHubAddress;

  constructor({ exchange, tokens, address }: GitHubOptions) {
    this.#exchange = exchange;
    this.#tokens = tokens;
    this.#address = address;
  }

  /** Returns the number of a runner group. @throws GitHubError with `RunnerGroupNotFound` when there is none of this name */
  async findGroup(name: string, signal: AbortSignal): Promise<number> {
    const path = 'runtime/runnergroups/';
    const { value } = await this.#call('GET', path, signal, { query: { groupName: name } }, groupsSchema);
    const found = value.find((group) => group.name.toLowerCase() === name.toLowerCase());
    if (found === undefined) {
      throw new GitHubError('RunnerGroupNotFound', `GitHub knows no runner group ${name}`);
    }
    return found.id;
  }

  async findScaleSet(groupID: number, name: string, signal: AbortSignal): Promise<ScaleSet | undefined> {
    const query = { runnerGroupId: String(groupID), name };
    const { value } = await this.#call('GET', SETS, signal, { query }, scaleSetsSchema);
    return value.find((set) => set.name.toLowerCase() === name.toLowerCase());
  }

  async createScaleSet(
    { groupID, name, labels }: { groupID: number; name: string; labels: readonly string[] },
    signal: AbortSignal,
  ): Promise<ScaleSet> {
    const body = {
      name,
      runnerGroupId: groupID,
      labels: labels.map((label) => ({ type: 'System', name: label })),
      RunnerSetting: { disableUpdate: true },
      createdOn: NO_TIME,
    };
    return await this.#call('POST', SETS, signal, { body }, createdSetSchema);
  }

  /** Says which scale set the next requests are about. */
  useScaleSet(id: number): void {
    this.#exchange.scaleSetID = id;
  }

  /** Opens the message session. @throws GitHubError with `SessionConflict` while another session lives */
  async openSession(setID: number, owner: string, signal: AbortSignal): Promise<Session> {
    const body = { sessionId: NEW_SESSION, ownerName: owner };
    return await this.#call('POST', `${SETS}/${setID}/sessions`, signal, { body }, sessionSchema);
  }

  /** Returns the session with a new token for its queue. */
  async refreshSession(setID: number, session: Session, signal: AbortSignal): Promise<Session> {
    const path = `${SETS}/${setID}/sessions/${session.sessionId}`;
    return await this.#call('PATCH', path, signal, {}, sessionSchema);
  }

  async endSession(setID: number, session: Session, signal: AbortSignal): Promise<void> {
    await this.#call('DELETE', `${SETS}/${setID}/sessions/${session.sessionId}`, signal, {}, undefined);
  }

  async deleteScaleSet(setID: number, signal: AbortSignal): Promise<void> {
    await this.#call('DELETE', `${SETS}/${setID}`, signal, {}, undefined);
  }

  /**
   * Waits for the next message, at most 50 s. `capacity` is the number of jobs that the set can run at the same time.
   * @returns undefined if there was none
   */
  async nextMessage(
    session: Session,
    { lastID, capacity }: { lastID: number | undefined; capacity: number },
    signal: AbortSignal,
  ): Promise<QueueMessage | undefined> {
    const url = new URL(session.messageQueueUrl);
    if (lastID !== undefined) {
      url.searchParams.set('lastMessageId', String(lastID));
      url.searchParams.sort();
    }
    const request: GitHubRequest = {
      method: 'GET',
      url,
      headers: {
        authorization: `Bearer ${session.messageQueueAccessToken}`,
        accept: `application/json; api-version=${API_VERSION}`,
        'x-scalesetmaxcapacity': String(capacity),
      },
      limitMilliseconds: POLL_MILLISECONDS,
      what: 'The message queue',
    };
    const answer = await this.#exchange.send(request, signal);
    if (answer.status !== 200) {
      return undefined;
    }
    const { messageId, messageType, statistics, body } = readBody(request.what, answer, messageSchema);
    const items = messageType === 'RunnerScaleSetJobMessages' ? parseItems(body ?? '') : [];
    return { id: messageId, statistics: statistics ?? undefined, items };
  }

  /** Says that a message need not be sent again. */
  async acknowledge(session: Session, messageID: number, signal: AbortSignal): Promise<void> {
    const url = new URL(session.messageQueueUrl);
    url.pathname = `${url.pathname}/${messageID}`;
    const headers = {
      authorization: `Bearer ${session.messageQueueAccessToken}`,
      'content-type': 'application/json',
    };
    const what = 'The confirmation of a message';
    await this.#exchange.send({ method: 'DELETE', url, headers, what }, signal);
  }

  /** Takes jobs that are offered to several sets. */
  async acquire(setID: number, session: Session, ids: readonly number[], signal: AbortSignal): Promise<void> {
    const { url } = await this.#tokens.tenant(signal);
    await this.#exchange.send(
      {
        method: 'POST',
        url: tenantURL(url, `${SETS}/${setID}/acquirejobs`),
        headers: {
          authorization: `Bearer ${session.messageQueueAccessToken}`,
          'content-type': 'application/json',
        },
        body: ids,
        what: 'The request for jobs',
      },
      signal,
    );
  }

  /** Registers a runner for one job, and returns its configuration. It is a secret. */
  async registerRunner(setID: number, name: string, signal: AbortSignal): Promise<string> {
    const body = { name, workFolder: WORK_FOLDER };
    const path = `${SETS}/${setID}/generatejitconfig`;
    return (await this.#call('POST', path, signal, { body }, jitSchema)).encodedJITConfig;
  }

  /**
   * Removes a runner, so that it gets no job any more.
   * @returns false if the runner has a job, and is therefore not removed
   */
  async removeRunner(name: string, signal: AbortSignal): Promise<boolean> {
    const { value } = await this.#call('GET', AGENTS, signal, { query: { agentName: name } }, agentsSchema);
    const found = value.find((agent) => agent.name === name);
    if (found === undefined) {
      return true;
    }
    try {
      await this.#call('DELETE', `${AGENTS}/${found.id}`, signal, {}, undefined);
      return true;
    } catch (error) {
      if (isAnswer(error, 'AgentNotFoundException', 404)) {
        return true;
      }
      if (isAnswer(error, 'JobStillRunningException')) {
        return false;
      }
      throw error;
    }
  }

  /** Returns the runners whose names begin with the prefix. @throws GitHubError also when there are too many runners to list */
  async listRunners(prefix: string, signal: AbortSignal): Promise<KnownRunner[]> {
    const found: KnownRunner[] = [];
    for (let page = 1; page <= PAGES; page += 1) {
      const { total_count, runners } = await this.#listPage(page, signal);
      for (const { id, name, status, busy } of runners) {
        if (name.startsWith(prefix)) {
          found.push({ id, name, isOnline: status === 'online', isBusy: busy });
        }
      }
      if (runners.length < PAGE || page * PAGE >= total_count) {
        return found;
      }
    }
    throw new GitHubError('GitHubFailed', `The list of runners has more than ${PAGE * PAGES} runners`);
  }

  async #listPage(page: number, signal: AbortSignal): Promise<z.infer<typeof runnersPageSchema>> {
    const url = new URL(`${this.#address.api}/${this.#address.scope}/actions/runners`);
    url.search = `page=${page}&per_page=${PAGE}`;
    const token = await this.#tokens.rest(signal);
    const headers = { authorization: `Bearer ${token}`, accept: 'application/vnd.github+json' };
    const request: GitHubRequest = { method: 'GET', url, headers, what: 'The list of runners' };
    return await this.#renewing(async () => await this.#exchange.fetch(request, runnersPageSchema, signal));
  }

  async #call<T>(
    method: GitHubRequest['method'],
    path: string,
    signal: AbortSignal,
    { query = {}, body }: { query?: Record<string, string>; body?: unknown },
    schema: z.ZodType<T> | undefined,
  ): Promise<T> {
    const { url: base, token } = await this.#tokens.tenant(signal);
    const url = tenantURL(base, path, query);
    const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
    const what = `${method} ${path}`;
    return await this.#renewing(async () => {
      const answer = await this.#exchange.send({ method, url, headers, body, what }, signal);
      return schema === undefined ? (undefined as T) : readBody(what, answer, schema);
    });
  }

  /** Forgets the tokens if GitHub refuses one, so that the next call gets new ones. */
  async #renewing<T>(call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      if (isAnswer(error, 401)) {
        this.#tokens.forget();
      }
      throw error;
    }
  }
}

const SETS = 'runtime/runnerscalesets';
const AGENTS = 'distributedtask/pools/0/agents';

function tenantURL(base: URL, path: string, query: Record<string, string> = {}): URL {
  const url = new URL(base);
  url.pathname = `${base.pathname.replace(/\/$/, '')}/_apis/${path}`;
  url.search = new URLSearchParams({ 'api-version': API_VERSION, ...query }).toString();
  url.searchParams.sort();
  return url;
}

/** Returns the items of a message. A body that is no list of jobs has none, because the statistics count. */
function parseItems(text: string): readonly JobItem[] {
  try {
    return itemsSchema.safeParse(parseJson(text, ITEMS)).data ?? [];
  } catch (error) {
    if (error instanceof JsonError) {
      return [];
    }
    throw error;
  }
}
