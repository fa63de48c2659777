/**
 * Holds the message session of one scale set, and waits for its news. The session stays the same over faults of the network and of GitHub,
 * because GitHub refuses a second one for minutes.
 */
import type { Logger } from 'pino';
import { waitAsked } from '../api/v1alpha1/reasons.ts';
import type { Statistics } from '../api/v1alpha1/runnerset.ts';
import { Backoff } from '../base/backoff.ts';
import { rest } from '../base/time.ts';
import type { JobItem, ScaleSet, Session } from './github/answers.ts';
import type { GitHub, QueueMessage } from './github/client.ts';
import { GitHubError, isAnswer, quote } from './github/error.ts';

/** First and longest wait between two attempts, in milliseconds. */
const BACKOFF = { firstMilliseconds: 1_000, capMilliseconds: 60_000, jitter: 0.5 } as const;
/**
 * Least time in milliseconds between the beginnings of two polls, after an answer without and with a message. The polls of GitHub take
 * longer. A server that answers at once must not keep this program busy.
 */
const QUIET_POLL_MILLISECONDS = 1_000;
const NEWS_POLL_MILLISECONDS = 250;
/** Time in milliseconds for the end of the session at a stop. Kubernetes gives a Pod 30 s. */
const END_MILLISECONDS = 5_000;

/** A client with a way to close its connections. */
export interface OpenGitHub {
  readonly github: GitHub;
  close(): Promise<void>;
}

export interface ScaleSetNames {
  readonly group: string;
  readonly name: string;
  readonly labels: readonly string[];
}

/** What the set learns from its listener. */
export interface News {
  readonly statistics: Statistics | undefined;
  readonly items: readonly JobItem[];
}

export interface ListenerOptions {
  readonly names: ScaleSetNames;
  /** Name of this process for people at GitHub. */
  readonly owner: string;
  /** Reads the credentials and makes a client with them. @throws GitHubError */
  readonly connect: (signal: AbortSignal) => Promise<OpenGitHub>;
  /** Returns the number of jobs that GitHub may assign to the set. It is asked before each poll. */
  readonly capacity: () => number;
  readonly onConnected: (scaleSetID: number) => void;
  readonly onFailed: (error: GitHubError) => void;
  readonly onNews: (news: News) => void;
  readonly logger: Logger;
}

export class Listener {
  readonly #options: ListenerOptions;
  readonly #backoff = new Backoff(BACKOFF);
  readonly #stopping = new AbortController();
  readonly #ended: Promise<void>;
  #client: OpenGitHub | undefined;
  #setID: number | undefined;
  #session: Session | undefined;
  #lastID: number | undefined;
  #deletesSet = false;
  /** Time, as in `performance.now`, before which no poll begins. */
  #nextPollAt = 0;

  /** Starts to listen. */
  constructor(options: ListenerOptions) {
    this.#options = options;
    this.#ended = this.#run(this.#stopping.signal);
  }

  /** The client while the session is open. */
  get connected(): { readonly github: GitHub; readonly setID: number } | undefined {
    return this.#client === undefined || this.#session === undefined || this.#setID === undefined
      ? undefined
      : { github: this.#client.github, setID: this.#setID };
  }

  /**
   * Ends the session, and resolves when all connections are closed. If `deletesSet` is true and the session was open, the scale set is
   * deleted. Without the session, another program may use it.
   */
  async stop({ deletesSet }: { deletesSet: boolean }): Promise<void> {
    this.#deletesSet = deletesSet;
    this.#stopping.abort();
    await this.#ended;
  }

  async #run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        await this.#open(signal);
        await this.#listen(signal);
      } catch (error) {
        if (!signal.aborted) {
          await this.#fail(error, signal);
        }
      }
    }
    await this.#end();
  }

  async #open(signal: AbortSignal): Promise<void> {
    const { connect, owner, onConnected, onNews } = this.#options;
    this.#client ??= await connect(signal);
    const { github } = this.#client;
    const setID = this.#setID ?? (await this.#ensureSet(github, signal));
    this.#setID = setID;
    github.useScaleSet(setID);
    if (this.#session === undefined) {
      this.#session = await github.openSession(setID, owner, signal);
      this.#lastID = undefined;
      onConnected(setID);
      onNews({ statistics: this.#session.statistics ?? undefined, items: [] });
    } else {
      await this.#refresh(github, setID, this.#session, signal);
      onConnected(setID);
    }
  }

  async #ensureSet(github: GitHub, signal: AbortSignal): Promise<number> {
    const { group, name, labels } = this.#options.names;
    const groupID = await github.findGroup(group, signal);
    const found = await github.findScaleSet(groupID, name, signal);
    if (found === undefined) {
      return (await github.createScaleSet({ groupID, name, labels }, signal)).id;
    }
    requireLabels(found, labels);
    return found.id;
  }

  /** Gets a new token for the queue. A session that GitHub no longer knows is given up. */
  async #refresh(github: GitHub, setID: number, session: Session, signal: AbortSignal): Promise<void> {
    try {
      this.#session = await github.refreshSession(setID, session, signal);
    } catch (error) {
      if (isAnswer(error, 404, 400)) {
        this.#session = undefined;
        this.#setID = undefined;
      }
      throw error;
    }
  }

  async #listen(signal: AbortSignal): Promise<void> {
    let isRefused = false;
    while (!signal.aborted && this.#client !== undefined && this.#setID !== undefined) {
      const { github } = this.#client;
      const session = this.#session;
      if (session === undefined) {
        return;
      }
      try {
        const message = await this.#poll(github, session, signal);
        this.#backoff.reset();
        isRefused = false;
        if (message !== undefined) {
          await this.#take(github, this.#setID, { session, message }, signal);
        }
      } catch (error) {
        if (isRefused || !isAnswer(error, 401)) {
          throw error;
        }
        // The token of the queue has expired, which is usual after an hour.
        isRefused = true;
        await this.#refresh(github, this.#setID, session, signal);
      }
    }
  }

  /** Waits for the turn of the next poll, and polls. The offer is computed after the wait, so that it is new. */
  async #poll(github: GitHub, session: Session, signal: AbortSignal): Promise<QueueMessage | undefined> {
    await rest(Math.max(0, this.#nextPollAt - performance.now()), signal);
    signal.throwIfAborted();
    const beganAt = performance.now();
    const offer = { lastID: this.#lastID, capacity: this.#options.capacity() };
    const message = await github.nextMessage(session, offer, signal);
    this.#nextPollAt = beganAt + (message === undefined ? QUIET_POLL_MILLISECONDS : NEWS_POLL_MILLISECONDS);
    return message;
  }

  /** Confirms a message, and acts afterwards. If this process dies in between, the statistics of the next session say the same. */
  async #take(
    github: GitHub,
    setID: number,
    { session, message }: { session: Session; message: QueueMessage },
    signal: AbortSignal,
  ): Promise<void> {
    await github.acknowledge(session, message.id, signal);
    this.#lastID = message.id;
    this.#options.onNews(message);
    const offered = message.items.filter(({ messageType }) => messageType === 'JobAvailable');
    const ids = offered.map(({ runnerRequestId = 0 }) => runnerRequestId).filter((id) => id > 0);
    if (ids.length > 0) {
      await github.acquire(setID, session, ids, signal);
    }
  }

  async #fail(error: unknown, signal: AbortSignal): Promise<void> {
    const { onFailed, logger } = this.#options;
    const failure = asGitHubError(error);
    const wait = waitAsked(this.#backoff.next(), failure.retryAfterMilliseconds);
    onFailed(failure);
    logger.warn({ err: error, waitMilliseconds: Math.round(wait) }, 'GitHub failed, trying again');
    if (failure.reason === 'Unauthorized') {
      // The next attempt reads the credentials again, because somebody may have corrected them.
      await this.#disconnect();
    }
    await rest(wait, signal);
  }

  async #disconnect(): Promise<void> {
    await this.#client?.close();
    this.#client = undefined;
  }

  async #end(): Promise<void> {
    const { logger } = this.#options;
    const [client, session, setID] = [this.#client, this.#session, this.#setID];
    this.#session = undefined;
    try {
      if (client !== undefined && session !== undefined && setID !== undefined) {
        const limit = AbortSignal.timeout(END_MILLISECONDS);
        await client.github.endSession(setID, session, limit);
        if (this.#deletesSet) {
          await client.github.deleteScaleSet(setID, limit);
        }
      }
    } catch (error) {
      logger.warn({ err: error }, 'the session was not ended, so GitHub keeps it for some minutes');
    }
    await this.#disconnect();
  }
}

/** @throws GitHubError with `LabelsDiffer` when the scale set has other labels. GitHub does not say that labels can be changed. */
function requireLabels(found: ScaleSet, labels: readonly string[]): void {
  const fold = (names: readonly string[]): string[] => names.map((name) => name.toLowerCase()).toSorted();
  const [has, wants] = [fold((found.labels ?? []).map(({ name }) => name)), fold(labels)];
  if (has.length !== wants.length || has.some((name, index) => name !== wants[index])) {
    throw new GitHubError(
      'LabelsDiffer',
      `Scale set ${quote(found.name)} has the labels ${quote(has.join(', '))}`,
    );
  }
}

function asGitHubError(error: unknown): GitHubError {
  return error instanceof GitHubError
    ? error
    : new GitHubError('GitHubFailed', 'A fault of the program. Its log has the details', { cause: error });
}
