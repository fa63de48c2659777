/**
 * Stands between one operator and the API server: records what it writes, and stops its world at a chosen write, so that
 * a process can be killed or frozen at exactly that moment.
 */
import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { Agent, request as forwardSecurely } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import type { Cluster } from '../../hack/cluster/index.ts';
import { writeKubeconfig } from '../../hack/cluster/kubeconfig.ts';
import { waitFor } from '../../hack/wait.ts';

export interface Write {
  method: string;
  /** Without its query. */
  path: string;
  body: string;
  /** What the API server answered; undefined until it did, and when the write never reached it. */
  status: number | undefined;
}

/** What becomes of the writes that were held back: lost with their sender, or late, as over a slow network. */
type Fate = 'lost' | 'late';

/** The write at which the world stops: before the API server has it, or after it has done it, with its answer held back. */
interface Trap {
  when: 'before' | 'after';
  matches: (write: Write) => boolean;
}

interface Watch {
  path: string;
  to: ServerResponse;
  /** While it is silent. */
  held: Buffer[];
}

interface Stop {
  fate: Promise<Fate>;
  decide: (fate: Fate) => void;
}

export class ApiProxy {
  /** For the operator: the proxy's address with the operator's own token. */
  readonly kubeconfig: string;
  /** All, in the order in which they were sent. */
  readonly writes: Write[] = [];
  readonly #target: URL;
  readonly #agent: Agent;
  readonly #server: Server;
  #trap: Trap | undefined;
  #stop: Stop | undefined;
  readonly #watches = new Set<Watch>();
  #silent: string | undefined;
  /** All that watches brought, in the order of its coming. */
  #told = '';

  private constructor(cluster: Cluster, server: Server, name: string) {
    const authority = readFileSync(join(cluster.directory, 'pki', 'ca.crt'), 'utf8');
    this.#target = new URL(cluster.server);
    this.#agent = new Agent({ ca: authority, keepAlive: true });
    this.#server = server;
    this.kubeconfig = join(cluster.directory, `${name}.kubeconfig`);
    writeKubeconfig(this.kubeconfig, {
      server: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
      authority,
      user: { kind: 'tokenFile', path: join(cluster.directory, 'operator.token') },
    });
  }

  /** `name` names its kubeconfig. */
  static async start(cluster: Cluster, name: string): Promise<ApiProxy> {
    const server = createServer();
    await new Promise<void>((resolve) => {
      server.listen(0, '127.0.0.1', resolve);
    });
    const proxy = new ApiProxy(cluster, server, name);
    server.on('request', (request: IncomingMessage, response: ServerResponse) => {
      // What fails here is a connection that one of its ends cut; the other end must see that too.
      proxy.#handle(request, response).catch(() => response.destroy());
    });
    return proxy;
  }

  /** At the next write that matches the world stops: from then on no write reaches the API server, until `goOn`. */
  stopAt(when: Trap['when'], matches: Trap['matches']): void {
    this.#trap = { when, matches };
  }

  async untilStopped(): Promise<void> {
    await waitFor('the write at which the world stops', () => this.#stop !== undefined);
  }

  goOn(fate: Fate): void {
    this.#trap = undefined;
    this.#stop?.decide(fate);
    this.#stop = undefined;
  }

  /** Watches of this path bring nothing until `speak`, and then what they had to say meanwhile. */
  silence(path: string): void {
    this.#silent = path;
  }

  speak(): void {
    this.#silent = undefined;
    for (const { held, to } of this.#watches) {
      for (const chunk of held.splice(0)) {
        to.write(chunk);
      }
    }
  }

  /** Whether a watch has brought this to the operator's door; a frozen one finds it there. */
  hasTold(text: string): boolean {
    return this.#told.includes(text);
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
    });
    this.#agent.destroy();
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = 'GET', url = '' } = request;
    const [path = '', query = ''] = url.split('?');
    if (method === 'GET') {
      const answer = await this.#forward(request, undefined, response);
      if (query.includes('watch=true')) {
        this.#watch(path, answer, response);
      } else {
        this.#pipe(answer, response);
      }
      return;
    }
    const body = await buffer(request);
    const write: Write = { method, path, body: body.toString('utf8'), status: undefined };
    this.writes.push(write);
    this.#spring('before', write);
    if ((await this.#stop?.fate) === 'lost') {
      response.destroy();
      return;
    }
    const answer = await this.#forward(request, body, response);
    write.status = answer.statusCode;
    // A write that was refused has not happened; its caller tries again.
    const stop = (write.status ?? 0) < 300 ? this.#spring('after', write) : undefined;
    if ((await stop?.fate) === 'lost') {
      response.destroy();
    } else {
      this.#pipe(answer, response);
    }
  }

  #spring(when: Trap['when'], write: Write): Stop | undefined {
    if (this.#trap?.when !== when || !this.#trap.matches(write)) {
      return undefined;
    }
    this.#trap = undefined;
    const { promise: fate, resolve: decide } = Promise.withResolvers<Fate>();
    this.#stop = { fate, decide };
    return this.#stop;
  }

  #watch(path: string, from: IncomingMessage, to: ServerResponse): void {
    const watch: Watch = { path, to, held: [] };
    this.#watches.add(watch);
    to.once('close', () => this.#watches.delete(watch));
    begin(from, to);
    to.flushHeaders();
    from.on('data', (chunk: Buffer) => {
      this.#told += chunk.toString('utf8');
      if (path === this.#silent) {
        watch.held.push(chunk);
      } else {
        to.write(chunk);
      }
    });
    from.once('end', () => to.end());
  }

  #pipe(from: IncomingMessage, to: ServerResponse): void {
    begin(from, to);
    from.pipe(to);
  }

  #forward(
    request: IncomingMessage,
    body: Buffer | undefined,
    response: ServerResponse,
  ): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      const onward = forwardSecurely(
        {
          host: this.#target.hostname,
          port: this.#target.port,
          method: request.method,
          path: request.url,
          headers: { ...request.headers, host: this.#target.host },
          agent: this.#agent,
        },
        resolve,
      );
      onward.once('error', reject);
      // A caller that is gone watches no longer.
      if (body === undefined) {
        response.once('close', () => onward.destroy());
      }
      onward.end(body);
    });
  }
}

function begin(from: IncomingMessage, to: ServerResponse): void {
  to.writeHead(from.statusCode ?? 502, from.headers);
  from.once('error', () => to.destroy());
}
