/**
 * A stand-in for the HTTP API with which the agents of Buildkite get their jobs. Its requests and answers are those of agent 3.78.0. It has
 * one agent, and gives it one job after the other.
 */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { gunzipSync } from 'node:zlib';
import { waitFor } from '../../hack/wait.ts';

/** Tokens of the organization, of a registered agent, and of a job. */
const TOKENS = { register: 'reg-token', agent: 'agent-token', job: 'job-token' } as const;
/** Times that the agent writes into logs, and control characters of a terminal that end a line. */
// oxlint-disable-next-line eslint/no-control-regex -- They are control characters.
const TIMES = /\u001b(?:_bk;t=\d+\u0007|\[K)/g;
/** Largest part of a log in bytes. */
const CHUNK_BYTES = 102_400;

interface Job {
  readonly id: string;
  readonly env: Readonly<Record<string, string>>;
  state: 'scheduled' | 'accepted' | 'running' | 'canceling' | 'finished';
  log: string;
  exitStatus: string | undefined;
}

/** Request of the agent: the parts of its path, and its body. */
interface Call {
  readonly segments: readonly string[];
  readonly body: Buffer;
}

/** How a job ended: its exit status, as the agent reports it, and its log. */
export interface JobResult {
  readonly exitStatus: string | undefined;
  readonly log: string;
}

export class BuildkiteStandIn implements AsyncDisposable {
  readonly #server: Server;
  readonly #jobs = new Map<string, Job>();

  private constructor(server: Server) {
    this.#server = server;
  }

  static async start(): Promise<BuildkiteStandIn> {
    const server = createServer();
    const standIn = new BuildkiteStandIn(server);
    server.on('request', (request, response) => {
      void standIn.#answer(request).then(
        (answer) => response.writeHead(answer === undefined ? 404 : 200).end(JSON.stringify(answer ?? {})),
        (error: unknown) => response.writeHead(500).end(String(error)),
      );
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    return standIn;
  }

  /** Arguments with which an agent uses this API and runs each job by the script. */
  startArguments(script: string, folder: string): string[] {
    const flags = {
      token: TOKENS.register,
      endpoint: this.#endpoint,
      name: 'agent',
      'build-path': folder,
      'bootstrap-script': script,
      // The deletion of a VM takes some seconds.
      'cancel-grace-period': '40',
    };
    return ['start', '--no-color', ...Object.entries(flags).map(([name, value]) => `--${name}=${value}`)];
  }

  get #endpoint(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/v3`;
  }

  /** Gives the agent a job with this command. Returns how it ended. */
  async run(id: string, command: string, env: Readonly<Record<string, string>> = {}): Promise<JobResult> {
    this.give(id, command, env);
    const job = this.#job(id);
    await waitFor(`the end of job ${id}`, () => job.state === 'finished', { deadlineMilliseconds: 240_000 });
    return { exitStatus: job.exitStatus, log: job.log };
  }

  /** Gives the agent a job with this command, and does not wait. */
  give(id: string, command: string, env: Readonly<Record<string, string>> = {}): void {
    const own = {
      BUILDKITE_JOB_ID: id,
      BUILDKITE_COMMAND: command,
      BUILDKITE_SKIP_CHECKOUT: 'true',
      BUILDKITE_AGENT_NAME: 'agent',
      BUILDKITE_ORGANIZATION_SLUG: 'acme',
      BUILDKITE_PIPELINE_SLUG: 'app',
      BUILDKITE_PIPELINE_PROVIDER: 'git',
      BUILDKITE_REPO: '/none',
      BUILDKITE_BRANCH: 'main',
      BUILDKITE_COMMIT: 'HEAD',
    };
    this.#jobs.set(id, { id, env: { ...own, ...env }, state: 'scheduled', log: '', exitStatus: undefined });
  }

  /** Resolves when the log of the job has a text of this form. */
  async logs(id: string, pattern: RegExp): Promise<void> {
    await waitFor(`job ${id} to log ${pattern}`, () => pattern.test(this.#job(id).log), {
      deadlineMilliseconds: 240_000,
    });
  }

  /** Cancels the job, as a person does. Returns how it ended. */
  async cancel(id: string): Promise<JobResult> {
    const job = this.#job(id);
    job.state = 'canceling';
    await waitFor(`the end of job ${id}`, () => job.exitStatus !== undefined);
    return { exitStatus: job.exitStatus, log: job.log };
  }

  #job(id: string): Job {
    const job = this.#jobs.get(id);
    if (job === undefined) {
      throw new Error(`no job ${id}`);
    }
    return job;
  }

  /** Returns the answer to a request, or undefined for a path that the API does not have. */
  async #answer(request: IncomingMessage): Promise<object | undefined> {
    const body = await buffer(request);
    const { pathname } = new URL(request.url ?? '', this.#endpoint);
    const segments = pathname.split('/').slice(2);
    const token = request.headers.authorization?.replace(/^Token /, '');
    const tokens: readonly unknown[] =
      segments[0] === 'register' ? [TOKENS.register] : [TOKENS.agent, TOKENS.job];
    if (!tokens.includes(token)) {
      throw new Error(`${pathname} has the token ${token}`);
    }
    return segments[0] === 'jobs' ? this.#answerJob({ segments, body }) : this.#answerAgent(segments[0]);
  }

  #answerAgent(word: string | undefined): object | undefined {
    switch (word) {
      case 'register':
        return {
          id: 'agent',
          name: 'agent',
          access_token: TOKENS.agent,
          endpoint: this.#endpoint,
          ping_interval: 1,
          job_status_interval: 1,
          heartbeat_interval: 60,
          meta_data: [],
        };
      case 'ping': {
        const next = [...this.#jobs.values()].find(({ state }) => state === 'scheduled');
        return { action: '', ...(next && { job: this.#shown(next) }) };
      }
      case 'connect':
      case 'heartbeat':
      case 'disconnect':
        return {};
      default:
        return undefined;
    }
  }

  #answerJob({ segments: [, id = '', verb], body }: Call): object | undefined {
    const job = this.#job(id);
    switch (verb) {
      case undefined:
        return { state: job.state };
      case 'accept':
        job.state = 'accepted';
        return this.#shown(job);
      case 'start':
        job.state = 'running';
        return {};
      case 'chunks':
        job.log += gunzipSync(body).toString().replaceAll('\r\n', '\n').replaceAll(TIMES, '');
        return {};
      case 'finish':
        job.exitStatus = (JSON.parse(body.toString()) as { exit_status: string }).exit_status;
        job.state = 'finished';
        return {};
      default:
        return undefined;
    }
  }

  #shown({ id, env, state }: Job): object {
    const endpoint = this.#endpoint;
    return { id, env, state, endpoint, token: TOKENS.job, chunks_max_size_bytes: CHUNK_BYTES };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }
}
