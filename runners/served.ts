/** State of one set that this process serves: its listener, the last numbers of GitHub, and what earlier passes left. */
import type { VM } from '../api/v1alpha1/vm.ts';
import { waitAfter } from '../base/backoff.ts';
import { messageOf } from '../base/errors.ts';
import { retryAfterOf, waitAsked } from '../api/v1alpha1/reasons.ts';
import type { RunnerSet, RunnerSetSpec, Statistics } from '../api/v1alpha1/runnerset.ts';
import type { KubeClient } from '../kube/client.ts';
import { type Secret, SECRETS } from '../kube/core.ts';
import { unlessMissing } from '../kube/errors.ts';
import type { ObjectMeta } from '../kube/objects.ts';
import type { Logger } from 'pino';
import { parseAddress } from './github/address.ts';
import type { JobItem } from './github/answers.ts';
import { GitHub } from './github/client.ts';
import { readAuthorities, readCredentials } from './github/credentials.ts';
import { GitHubError } from './github/error.ts';
import { Exchange } from './github/exchange.ts';
import { GitHubHttp, type GitHubNetwork } from './github/http.ts';
import { Tokens } from './github/tokens.ts';
import { Listener, type News, type OpenGitHub } from './listener.ts';
import { namePrefix, scaleSetName } from './machines.ts';
import { type Listed, type Memory, NO_MEMORY, rememberNews } from './plan.ts';
import type { SetReport, Trouble } from './status.ts';

/**
 * Age in milliseconds at which the list of runners is fetched again. GitHub allows 5,000 requests an hour for all sets of one credential, so
 * that eighty sets can list.
 */
export const LIST_MILLISECONDS = 60_000;
/** The same age for a set without VMs and runners. */
const IDLE_LIST_MILLISECONDS = 600_000;
const USUAL_GROUP = 'default';
/** First and longest wait in milliseconds after a VM could not be made, or failed before its guest ran. */
const FAILED_FIRST_MILLISECONDS = 5_000;
const FAILED_CAP_MILLISECONDS = 300_000;
const NO_FAILURES: Failures = { count: 0, until: 0 };

/** Failures in a row, the last error, and the time before which no VM is made. */
interface Failures {
  readonly count: number;
  readonly until: number;
  readonly error?: Error;
  /** Name of the VM that was made after VMs that failed, to learn whether others would run. */
  readonly trial?: string;
}

/** A VM of a set failed before its guest ran. Others would fail, too, until somebody corrects the set, its VMConfig or its image. */
export class RunnerVMFailed extends Error {
  override readonly name = 'RunnerVMFailed';
  readonly createdAt: number;

  constructor({ metadata }: Readonly<VM>, { reason, message }: { reason?: string; message?: string }) {
    super(`VM ${metadata.name} failed before its guest ran: ${reason}: ${message}`);
    this.createdAt = createdAt(metadata);
  }
}

function createdAt({ creationTimestamp = '' }: ObjectMeta): number {
  return Date.parse(creationTimestamp);
}

export interface ServedOptions {
  readonly set: Readonly<RunnerSet>;
  readonly client: KubeClient;
  readonly network: GitHubNetwork;
  /** Name of this process for people at GitHub. */
  readonly owner: string;
  /** Returns the number of jobs that GitHub may assign to the set. It is asked before each poll. */
  readonly capacity: () => number;
  /** Called when there is news. */
  readonly onChange: () => void;
  readonly onItems: (items: readonly JobItem[]) => void;
  readonly logger: Logger;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

export class ServedSet {
  readonly #options: ServedOptions;
  readonly #listener: Listener;
  readonly #identity: string;
  readonly prefix: string;
  connection: SetReport['connection'];
  scaleSetID: number | undefined;
  statistics: Statistics | undefined;
  memory: Memory = NO_MEMORY;
  listed: Listed | undefined;
  trouble: Trouble | undefined;
  /** Number of jobs in the offer that GitHub has. */
  offered = 0;
  failures: Failures = NO_FAILURES;
  /** Refusal of GitHub that asked for a wait, and the end of the wait. */
  #refusal: { readonly until: number; readonly error: GitHubError } | undefined;

  /** Begins to serve the set. */
  constructor(options: ServedOptions) {
    const { set, owner, capacity, logger } = options;
    this.#options = options;
    this.#identity = identityOf(set);
    this.prefix = namePrefix(set);
    const { github } = set.spec;
    const name = scaleSetName(set);
    this.#listener = new Listener({
      names: { group: github.runnerGroup ?? USUAL_GROUP, name, labels: github.labels ?? [name] },
      owner,
      capacity: () => this.#offer(capacity()),
      logger,
      connect: async (signal) => await this.#connect(github, signal),
      onConnected: (scaleSetID) => this.#connected(scaleSetID),
      onFailed: (error) => this.#failed(error),
      onNews: (news) => this.#take(news),
    });
  }

  /** Returns whether this state is for the set as it is now. */
  isFor(set: Readonly<RunnerSet>): boolean {
    return this.#identity === identityOf(set);
  }

  /** Whether GitHub can assign jobs to the set, or soon can. */
  get canGetJobs(): boolean {
    return this.connection === undefined || this.connection === 'open';
  }

  /** The client while the message session is open. */
  get connected(): Listener['connected'] {
    return this.connection === 'open' ? this.#listener.connected : undefined;
  }

  /**
   * Returns the list of runners. It is fetched if the last one is too old. `hasVMs` tells whether the set has VMs.
   * @throws GitHubError, also while GitHub has asked for a wait
   */
  async list(github: GitHub, hasVMs: boolean, signal: AbortSignal): Promise<Listed> {
    const now = this.#options.clock();
    if (this.#refusal !== undefined && now < this.#refusal.until) {
      throw this.#refusal.error;
    }
    const isIdle = !hasVMs && this.listed?.runners.length === 0;
    const age = isIdle ? IDLE_LIST_MILLISECONDS : LIST_MILLISECONDS;
    if (this.listed === undefined || now - this.listed.at >= age) {
      this.listed = { at: now, runners: await github.listRunners(this.prefix, signal) };
    }
    return this.listed;
  }

  /** Remembers that GitHub asked for a wait. */
  hold(error: unknown): void {
    const asked = retryAfterOf(error);
    if (error instanceof GitHubError && asked !== undefined) {
      this.#refusal = { until: this.#options.clock() + waitAsked(0, asked), error };
    }
  }

  /** Remembers that a VM could not be made, or failed. */
  fail(error: Error): void {
    const count = this.failures.count + 1;
    this.failures = { count, until: this.#endOfWait(count), error };
  }

  /** Returns how many of the missing VMs may be made. After VMs that failed it is one, until this one runs or fails. */
  allow(missing: number, exists: (name: string) => boolean): number {
    const { error, trial } = this.failures;
    if (!(error instanceof RunnerVMFailed)) {
      return missing;
    }
    return trial !== undefined && exists(trial) ? 0 : 1;
  }

  /** Remembers that a VM could be made. Whether its guest runs is another question. */
  made(name: string): void {
    const { count, error } = this.failures;
    this.failures =
      error instanceof RunnerVMFailed
        ? { count, until: this.#endOfWait(count), error, trial: name }
        : NO_FAILURES;
  }

  #endOfWait(count: number): number {
    return this.#options.clock() + waitAfter(count, FAILED_FIRST_MILLISECONDS, FAILED_CAP_MILLISECONDS);
  }

  /**
   * Takes note of a VM that runs, or that failed before its guest ran. VMs that were made together fail together, so only the first one counts.
   *
   * @returns the failure if it counts
   */
  observe(vm: Readonly<VM>): RunnerVMFailed | undefined {
    const { firstRunningTime, failure } = vm.status ?? {};
    const { error, until, trial } = this.failures;
    const last = error instanceof RunnerVMFailed ? error : undefined;
    if (firstRunningTime !== undefined && last !== undefined && createdAt(vm.metadata) >= last.createdAt) {
      this.failures = NO_FAILURES;
    }
    const counts = last === undefined ? this.#options.clock() >= until : vm.metadata.name === trial;
    if (firstRunningTime !== undefined || failure === undefined || !counts) {
      return undefined;
    }
    const failed = new RunnerVMFailed(vm, failure);
    this.fail(failed);
    return failed;
  }

  /** Ends the session. `deletesSet` also deletes the scale set at GitHub. */
  async stop(o: { deletesSet: boolean }): Promise<void> {
    await this.#listener.stop(o);
  }

  #connected(scaleSetID: number): void {
    this.connection = 'open';
    this.scaleSetID = scaleSetID;
    this.#options.onChange();
  }

  /** Remembers an offer. GitHub has it as long as the poll lasts. */
  #offer(jobs: number): number {
    if (jobs !== this.offered) {
      this.offered = jobs;
      this.#options.onChange();
    }
    return jobs;
  }

  #failed({ reason, message }: GitHubError): void {
    this.offered = 0;
    this.connection = { reason, message };
    this.#options.onChange();
  }

  #take({ statistics, items }: News): void {
    const { clock, onItems, onChange } = this.#options;
    this.statistics = statistics ?? this.statistics;
    const news = items.map(({ messageType: type, runnerName: name }) => ({ type, name }));
    this.memory = rememberNews(this.memory, news, clock());
    onItems(items);
    onChange();
  }

  /** Reads the Secrets and makes a client. Each attempt reads them again, because somebody may have corrected them. */
  async #connect(
    { url, credentialSecret, caSecret }: RunnerSetSpec['github'],
    signal: AbortSignal,
  ): Promise<OpenGitHub> {
    const { network, clock } = this.#options;
    const address = parseAddress(url);
    const credentials = readCredentials(
      await this.#read(credentialSecret, signal),
      credentialSecret,
      address.host,
    );
    const authorities =
      caSecret === undefined ? undefined : readAuthorities(await this.#read(caSecret, signal), caSecret);
    const http = new GitHubHttp({ authorities, ...network });
    const exchange = new Exchange(http);
    const tokens = new Tokens({ exchange, address, credentials, clock });
    return { github: new GitHub({ exchange, tokens, address }), close: async () => await http.close() };
  }

  async #read(name: string, signal: AbortSignal): Promise<Secret | undefined> {
    const { client, set } = this.#options;
    try {
      const ref = { namespace: set.metadata.namespace ?? '', name };
      return await unlessMissing(client.get(SECRETS, ref, { signal }));
    } catch (error) {
      signal.throwIfAborted();
      const message = `Secret ${name} cannot be read: ${messageOf(error)}`;
      throw new GitHubError('CredentialSecretRefused', message, { cause: error });
    }
  }
}

/** Returns a text that changes with everything that the listener reads once. */
function identityOf({ metadata, spec }: Readonly<RunnerSet>): string {
  return JSON.stringify([metadata.uid, spec.github]);
}
