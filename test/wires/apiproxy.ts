/**
 * A proxy between one operator and the API server. The proxy records the operator's writes and can hold back all writes from a chosen
 * write on. A test can therefore kill or freeze the operator at exactly that moment.
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
  /** Path of the request, without the query. */
  path: string;
  body: string;
  /** Status of the API server's answer. It is undefined before the answer, and if the write never reached the API server. */
  status: number | undefined;
}

/**
 * What happens with writes that were held back. Lost writes never reach the API server, as if their sender was killed. Late writes reach
 * the API server after {@link ApiProxy.goOn}, as over a slow network.
 */
type Fate = 'lost' | 'late';

/**
 * The write at which the proxy stops. With `before`, the proxy holds back the write. With `after`, the API server executes the write
 * and the proxy holds back the answer.
 */
interface Trap {
  when: 'before' | 'after';
  matches: (write: Write) => boolean;
}

interface Watch {
  path: string;
  to: ServerResponse;
  /** Events that arrived while the watch was silenced. */
  held: Buffer[];
}

interface Stop {
  fate: Promise<Fate>;
  decide: (fate: Fate) => void;
}

export class ApiProxy {
  /** Path of the operator's kubeconfig. The file contains the proxy's address and the operator's own token. */
  readonly kubeconfig: string;
  /** All writes in the order in which they were sent. */
  readonly writes: Write[] = [];
  readonly #target: URL;
  readonly #agent: Agent;
  readonly #server: Server;
  #trap: Trap | undefined;
  #stop: Stop | undefined;
  readonly #watches = new Set<Watch>();
  #silent: string | undefined;
  /** Text of all events of watches, in the order of their arrival. */
  #reported = '';

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

  /** Starts a proxy. `name` is the name of the kubeconfig. */
  static async start(cluster: Cluster, name: string): Promise<ApiProxy> {
    const server = createServer();
    await new Promise<void>((resolve) => {
      server.listen(0, '127.0.0.1', resolve);
    });
    const proxy = new ApiProxy(cluster, server, name);
    server.on('request', (request: IncomingMessage, response: ServerResponse) => {
      // This fails if one end has closed its connection. The other end must then also see a closed connection.
      proxy.#handle(request, response).catch(() => response.destroy());
    });
    return proxy;
  }

  /** Stops at the next matching write. No write reaches the API server until `goOn` is called. */
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

  /** Holds back all events of watches of this path. {@link speak} delivers them. */
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

  /** Whether the API server has sent this text in a watch. A frozen operator reads the text when it continues. */
  hasPassedOn(text: string): boolean {
    return this.#reported.includes(text);
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
    // A refused write changed nothing, and the operator repeats it.
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
      this.#reported += chunk.toString('utf8');
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
      // The watch ends when the operator has closed its connection.
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
