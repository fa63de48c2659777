/**
 * A stub of GitHub: an HTTPS server with the API for scale sets, which keeps jobs, runners and message sessions in memory. It answers like
 * the service in the recorded trace (test/fixtures/github), and can fail in the ways that users have seen.
 */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';
import { createAuthority, issue } from '../../../hack/cluster/authority.ts';
import { createKey } from '../../../kube/certificates/certificate.ts';
import type { Fault, Job, Message, SeenRequest, StubRunner, StubSet } from './model.ts';

const TYPE = 'GitHub.Actions.Runtime.WebApi';
const EXPIRES = '2099-01-01T00:00:00Z';
/** Items of one message at most. */
const ITEMS = 50;

export class GitHubStub implements AsyncDisposable {
  readonly #server: Server;
  readonly authority: string;
  readonly requests: SeenRequest[] = [];
  readonly sets: StubSet[] = [];
  readonly runners = new Map<string, StubRunner>();
  /** Time of a long poll without news. The program would wait after a shorter one. */
  pollMilliseconds = 1_000;
  /** Fault of all requests. */
  fault: Fault | undefined;
  /** Tokens of the REST API that are refused. */
  readonly refusedTokens = new Set<string>();
  /** Number of sessions that are refused although no session is open. */
  conflicts = 0;
  /** Whether bodies begin with a byte order mark. */
  hasMark = false;
  /** Whether news have no names of runners, and no ids of requests. */
  isNameless = false;
  /** Whether no runner can be registered. */
  refusesRunners = false;
  readonly #waiting = new Set<() => void>();
  #polls = 0;
  #last = 0;

  private constructor(server: Server, authority: string) {
    this.#server = server;
    this.authority = authority;
    server.on('request', (request, response) => {
      this.#answer(request, response).catch(() => response.destroy());
    });
  }

  static async start(): Promise<GitHubStub> {
    const authority = await createAuthority('stub of GitHub');
    const key = await createKey();
    const cert = await issue(authority, {
      key,
      commonName: 'stub',
      ipAddresses: ['127.0.0.1'],
      usages: ['server'],
    });
    const server = createServer({ key: key.pem, cert }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new GitHubStub(server, authority.certificate);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }

  get host(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** URL of an organization. */
  url(org: string): string {
    return `https://${this.host}/${org}`;
  }

  /** Returns a scale set that somebody has created. */
  set(org: string, name: string): StubSet {
    const found = this.sets.find((one) => one.org === org && one.name === name);
    if (found === undefined) {
      throw new Error(`no scale set ${name} in ${org}`);
    }
    return found;
  }

  /** Number of long polls that are open. */
  get openPolls(): number {
    return this.#polls;
  }

  queueJob(set: StubSet): Job {
    const job: Job = { id: `job-${++this.#last}`, state: 'queued', runner: undefined };
    set.jobs.push(job);
    this.#assign(set);
    return job;
  }

  /** Lets a runner come online, and gives it a job if one is assigned. */
  connect(name: string): StubRunner {
    const runner = this.#runner(name);
    runner.status = 'online';
    for (const set of this.sets) {
      const job = name.startsWith(`${set.name}-`)
        ? set.jobs.find(({ state }) => state === 'assigned')
        : undefined;
      if (job !== undefined && runner.job === undefined) {
        job.state = 'running';
        job.runner = name;
        runner.job = job;
        this.#send(set, [this.#item('JobStarted', job, runner)]);
      }
    }
    return runner;
  }

  /** Ends the job of a runner. GitHub forgets the runner with it. */
  finish(name: string): void {
    const runner = this.#runner(name);
    const { job } = runner;
    this.runners.delete(name);
    const set = this.sets.find(({ jobs }) => job !== undefined && jobs.includes(job));
    if (job !== undefined && set !== undefined) {
      job.state = 'done';
      this.#send(set, [{ ...this.#item('JobCompleted', job, runner), result: 'succeeded' }]);
      this.#assign(set);
    }
  }

  /** Lets the tokens of all message queues expire. */
  expireQueueTokens(): void {
    for (const { session } of this.sets) {
      if (session !== undefined) {
        session.token = `mq-${++this.#last}`;
      }
    }
    this.#wake();
  }

  #runner(name: string): StubRunner {
    const runner = this.runners.get(name);
    if (runner === undefined) {
      throw new Error(`no runner ${name}`);
    }
    return runner;
  }

  #item(messageType: string, job: Job, runner: StubRunner): object {
    const now = new Date().toISOString();
    return {
      messageType,
      runnerRequestId: 0,
      workflowRunId: 0,
      jobId: job.id,
      runnerId: this.isNameless ? 0 : runner.id,
      runnerName: this.isNameless ? '' : runner.name,
      queueTime: now,
      runnerAssignTime: now,
      finishTime: messageType === 'JobCompleted' ? now : '0001-01-01T00:00:00Z',
    };
  }

  /** Assigns as many jobs as the last capacity allows. */
  #assign(set: StubSet): void {
    const taken = set.jobs.filter(({ state }) => state === 'assigned' || state === 'running').length;
    const queued = set.jobs
      .filter(({ state }) => state === 'queued')
      .slice(0, Math.max(0, set.capacity - taken));
    for (const job of queued) {
      job.state = 'assigned';
    }
    this.#send(
      set,
      queued.map((job) => ({ messageType: 'JobAssigned', jobId: job.id, runnerRequestId: 0 })),
    );
  }

  #send(set: StubSet, items: readonly object[]): void {
    if (items.length > 0) {
      set.messages.push({ id: ++this.#last, items: items.slice(0, ITEMS) });
    }
    this.#wake();
  }

  #wake(): void {
    for (const wake of this.#waiting) {
      wake();
    }
  }

  #statistics(set: StubSet): Record<string, number> {
    const count = (...states: readonly string[]) =>
      set.jobs.filter(({ state }) => states.includes(state)).length;
    const own = [...this.runners.values()].filter(({ name }) => name.startsWith(`${set.name}-`));
    return {
      totalAvailableJobs: count('queued'),
      totalAcquiredJobs: 0,
      totalAssignedJobs: count('assigned', 'running'),
      totalRunningJobs: count('running'),
      totalRegisteredRunners: own.length,
      totalBusyRunners: own.filter(({ job }) => job !== undefined).length,
      totalIdleRunners: own.filter(({ job }) => job === undefined).length,
    };
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '', `https://${this.host}`);
    const { method = '' } = request;
    const hasBody = Number(request.headers['content-length'] ?? 0) > 0;
    const body: unknown = hasBody ? await json(request) : undefined;
    const query = Object.fromEntries(url.searchParams);
    const headers = request.headers as Record<string, string | undefined>;
    const seen = { method, path: url.pathname, query, headers, body };
    this.requests.push(seen);
    const { fault } = this;
    if (fault !== undefined) {
      if (fault.status !== undefined) {
        const shown = fault.reflects === true ? (headers['authorization'] ?? '') : 'a fault of the stub';
        const secret = shown.split(' ').at(-1) ?? '';
        const reflected =
          fault.reflects === true ? { activityid: secret, 'x-github-request-id': secret } : {};
        response.writeHead(fault.status, { ...reflected, ...fault.headers });
        response.end(
          JSON.stringify({ message: shown, ...(fault.reflects === true && { typeName: secret }) }),
        );
      }
      return;
    }
    const queue = /^\/tenant\/([^/]+)\/queue\/messages(?:\/(\d+))?$/.exec(url.pathname);
    if (queue !== null) {
      await this.#queue(seen, queue[2], response);
      return;
    }
    const [status, answer] = this.#rest(seen) ?? this.#tenant(seen) ?? [404, { message: 'not found' }];
    const mark = this.hasMark ? '\uFEFF' : '';
    response.writeHead(status, { 'content-type': 'application/json', activityid: 'a-1' });
    response.end(answer === undefined ? '' : mark + JSON.stringify(answer));
  }

  #rest({ method, path, query, headers, body }: SeenRequest): [number, unknown] | undefined {
    const [, , , ...parts] = path.split('/');
    if (!path.startsWith('/api/v3/')) {
      return undefined;
    }
    const token = (headers['authorization'] ?? '').split(' ')[1] ?? '';
    if (this.refusedTokens.has(token)) {
      return [401, { message: 'Bad credentials' }];
    }
    if (path.endsWith('/access_tokens')) {
      return [201, { token: 'ghs_inst', expires_at: EXPIRES }];
    }
    if (path.endsWith('/registration-token')) {
      return [201, { token: `reg-${parts[1]}`, expires_at: EXPIRES }];
    }
    if (path.endsWith('/runner-registration')) {
      const org = new URL((body as { url: string }).url).pathname.slice(1).replaceAll('/', '_');
      const claims = Buffer.from(JSON.stringify({ exp: Date.parse(EXPIRES) / 1000 })).toString('base64url');
      return [200, { url: `https://${this.host}/tenant/${org}/`, token: `eyJhbGciOiJub25lIn0.${claims}.x` }];
    }
    if (method === 'GET' && path.endsWith('/actions/runners')) {
      const page = Number(query['page']) - 1;
      const all = [...this.runners.values()].map(({ id, name, status, job }) => ({
        id,
        name,
        status,
        busy: job !== undefined,
      }));
      return [200, { total_count: all.length, runners: all.slice(page * 100, page * 100 + 100) }];
    }
    return undefined;
  }

  #tenant({ method, path, query, body }: SeenRequest): [number, unknown] | undefined {
    const [, org = '', rest = ''] = /^\/tenant\/([^/]+)\/_apis\/(.*)$/.exec(path) ?? [];
    if (rest === 'runtime/runnergroups/') {
      const value =
        query['groupName'] === 'default' ? [{ id: 1, name: 'default', isDefaultGroup: true }] : [];
      return [200, { count: value.length, value }];
    }
    const agents = /^distributedtask\/pools\/0\/agents(?:\/(\d+))?$/.exec(rest);
    if (agents !== null) {
      return this.#agents(method, agents[1], query['agentName']);
    }
    const [, id, action, session] =
      /^runtime\/runnerscalesets(?:\/(\d+)(?:\/(\w+)(?:\/(.+))?)?)?$/.exec(rest) ?? [];
    if (id === undefined) {
      return this.#scaleSets(method, org, query['name'], body);
    }
    const set = this.sets.find((one) => one.org === org && one.id === Number(id));
    return set === undefined
      ? [404, { message: 'no such set' }]
      : this.#scaleSet(set, { method, action, session }, body);
  }

  #scaleSets(method: string, org: string, name: string | undefined, body: unknown): [number, unknown] {
    if (method === 'POST') {
      const wanted = body as { name: string; labels: object[] };
      const id = this.sets.length + 1;
      const set: StubSet = {
        id,
        org,
        name: wanted.name,
        labels: wanted.labels,
        jobs: [],
        messages: [],
        session: undefined,
        capacity: 0,
        polls: 0,
      };
      this.sets.push(set);
      return [200, this.#shown(set)];
    }
    const value = this.sets
      .filter((set) => set.org === org && set.name === name)
      .map((set) => this.#shown(set));
    return [200, { count: value.length, value }];
  }

  #shown(set: StubSet): object {
    const { id, name, labels } = set;
    return { id, name, runnerGroupId: 1, labels, statistics: this.#statistics(set) };
  }

  #scaleSet(
    set: StubSet,
    { method, action, session }: { method: string; action: string | undefined; session: string | undefined },
    body: unknown,
  ): [number, unknown] | undefined {
    if (action === undefined) {
      this.sets.splice(this.sets.indexOf(set), 1);
      return [204, undefined];
    }
    if (action === 'acquirejobs') {
      const ids = body as number[];
      return [200, { count: ids.length, value: ids }];
    }
    if (action === 'generatejitconfig') {
      return this.#register(set, (body as { name: string }).name);
    }
    return action === 'sessions' ? this.#sessions(set, { method, session }, body) : undefined;
  }

  #sessions(
    set: StubSet,
    { method, session }: { method: string; session: string | undefined },
    body: unknown,
  ): [number, unknown] {
    const { org } = set;
    if (method === 'DELETE') {
      set.session = undefined;
      this.#wake();
      return [204, undefined];
    }
    if (method === 'POST') {
      if (set.session !== undefined || this.conflicts > 0) {
        this.conflicts = Math.max(0, this.conflicts - 1);
        const message = `The actions runner scaleset ${set.name} already has an active session.`;
        return [409, { typeName: `${TYPE}.RunnerScaleSetSessionConflictException, ${TYPE}`, message }];
      }
      const id = `11111111-1111-4111-8111-${String(++this.#last).padStart(12, '0')}`;
      set.session = { id, owner: (body as { ownerName: string }).ownerName, token: `mq-${++this.#last}` };
    }
    if (set.session?.id !== (session ?? set.session?.id)) {
      return [404, { message: 'no such session' }];
    }
    return [
      200,
      {
        sessionId: set.session?.id,
        ownerName: set.session?.owner,
        messageQueueUrl: `https://${this.host}/tenant/${org}/queue/messages?sessionId=${set.session?.id}`,
        messageQueueAccessToken: set.session?.token,
        statistics: this.#statistics(set),
      },
    ];
  }

  #register({ id: runnerScaleSetId }: StubSet, name: string): [number, unknown] {
    if (this.refusesRunners) {
      return [503, { message: 'no runner can be registered' }];
    }
    if (this.runners.has(name)) {
      return [
        409,
        {
          typeName: 'GitHub.DistributedTask.WebApi.AgentExistsException, GitHub.DistributedTask.WebApi',
          message: `Agent ${name} exists`,
        },
      ];
    }
    const id = ++this.#last;
    const token = randomUUID();
    this.runners.set(name, { id, name, token, status: 'offline', job: undefined });
    const encode = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64');
    const files = { '.runner': encode({ agentName: name }), '.credentials': encode({ token }) };
    return [
      200,
      {
        runner: { id, name, runnerScaleSetId },
        encodedJITConfig: Buffer.from(JSON.stringify(files)).toString('base64'),
      },
    ];
  }

  #agents(method: string, id: string | undefined, name: string | undefined): [number, unknown] {
    const all = [...this.runners.values()];
    if (id === undefined) {
      const value = all.filter((runner) => runner.name === name);
      return [200, { count: value.length, value: value.map(({ id, name }) => ({ id, name })) }];
    }
    const runner = all.find((one) => one.id === Number(id));
    if (runner === undefined) {
      return [404, { typeName: 'GitHub.DistributedTask.WebApi.AgentNotFoundException, X', message: 'gone' }];
    }
    if (method === 'DELETE' && runner.job !== undefined) {
      return [
        400,
        { typeName: 'GitHub.DistributedTask.WebApi.JobStillRunningException, X', message: 'busy' },
      ];
    }
    this.runners.delete(runner.name);
    return [204, undefined];
  }

  async #queue(
    { method, query, headers }: SeenRequest,
    id: string | undefined,
    response: ServerResponse,
  ): Promise<void> {
    const set = this.sets.find(({ session }) => session?.id === query['sessionId']);
    const isCurrent = () => headers['authorization'] === `Bearer ${set?.session?.token}`;
    if (set === undefined || !isCurrent()) {
      response.writeHead(401, { 'content-type': 'application/json' }).end('{"message":"TokenExpired"}');
      return;
    }
    if (method === 'DELETE') {
      const at = set.messages.findIndex((message) => message.id === Number(id));
      set.messages.splice(at, at < 0 ? 0 : 1);
      response.writeHead(204).end();
      return;
    }
    set.capacity = Number(headers['x-scalesetmaxcapacity']);
    this.#assign(set);
    const message = await this.#nextMessage(set, Number(query['lastMessageId'] ?? 0));
    if (message === undefined) {
      response.writeHead(202).end();
      return;
    }
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(
      JSON.stringify({
        messageId: message.id,
        messageType: 'RunnerScaleSetJobMessages',
        body: JSON.stringify(message.items),
        statistics: this.#statistics(set),
      }),
    );
  }

  async #nextMessage(set: StubSet, lastID: number): Promise<Message | undefined> {
    const find = () => set.messages.find(({ id }) => id > lastID);
    const until = Date.now() + this.pollMilliseconds;
    this.#polls += 1;
    set.polls += 1;
    try {
      while (find() === undefined && Date.now() < until && set.session !== undefined) {
        const { promise, resolve } = Promise.withResolvers<void>();
        const timer = setTimeout(resolve, until - Date.now());
        this.#waiting.add(resolve);
        await promise;
        clearTimeout(timer);
        this.#waiting.delete(resolve);
      }
      return find();
    } finally {
      this.#polls -= 1;
      set.polls -= 1;
    }
  }
}
