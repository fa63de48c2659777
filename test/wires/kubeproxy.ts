/** A proxy between a client and the API server. It causes faults of networks and servers in the client's watches. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Agent, request } from 'undici';
import type { Connection } from '../../kube/credentials.ts';

export interface Refusal {
  status: number;
  body: object;
  headers?: Record<string, string>;
}

export interface FaultProxy {
  /** Connection to the API server through the proxy, with the rights of the connection given to {@link startFaultProxy}. */
  readonly connection: Connection;
  /** Paths of all requests with their queries, in order. */
  readonly requests: string[];
  /** Is called for each request. The proxy answers with the returned refusal. If the result is undefined, the API server answers. */
  refuse: (path: string) => Refusal | undefined;
  /** Discards all later events of open watches, as if their connections had failed unnoticed. */
  silence(): void;
  /** Writes a line into all open watches. */
  inject(line: string): void;
  /** Ends all open watches, after `part` of a line if it is given. */
  cut(part?: string): void;
  /** Breaks the connections of all open watches. */
  reset(): void;
  close(): Promise<void>;
}

interface Watch {
  response: ServerResponse;
  silent: boolean;
}

export async function startFaultProxy(connection: Connection): Promise<FaultProxy> {
  const agent = new Agent({
    allowH2: false,
    connect: {
      ca: connection.certificateAuthority ?? '',
      cert: connection.clientCertificate ?? '',
      key: connection.clientKey ?? '',
    },
  });
  const watches = new Set<Watch>();
  const server = createServer((incoming, response) => {
    void handle(incoming, response).catch((error: unknown) => response.destroy(error as Error));
  });
  const proxy: FaultProxy = {
    connection: { server: '' },
    requests: [],
    refuse: () => undefined,
    silence: () => {
      for (const watch of watches) {
        watch.silent = true;
      }
    },
    inject: (line) => {
      for (const { response } of watches) {
        response.write(`${line}\n`);
      }
    },
    cut: (part) => {
      for (const { response } of watches) {
        response.end(part);
      }
    },
    reset: () => {
      for (const { response } of watches) {
        response.destroy();
      }
    },
    close: async () => {
      server.closeAllConnections();
      await new Promise<void>((resolve) => server.close(() => resolve()));
      await agent.destroy();
    },
  };

  async function handle(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = incoming.url ?? '/';
    proxy.requests.push(path);
    const refusal = proxy.refuse(path);
    if (refusal !== undefined) {
      response.writeHead(refusal.status, { 'content-type': 'application/json', ...refusal.headers });
      response.end(JSON.stringify(refusal.body));
      return;
    }
    const gone = new AbortController();
    response.on('close', () => gone.abort());
    const chunks = (await incoming.toArray()) as Buffer[];
    const upstream = await request(`${connection.server}${path}`, {
      dispatcher: agent,
      method: incoming.method as 'GET',
      headers: pickHeaders(incoming),
      body: chunks.length === 0 ? null : Buffer.concat(chunks),
      signal: gone.signal,
      bodyTimeout: 0,
    });
    response.writeHead(upstream.statusCode, { 'content-type': String(upstream.headers['content-type']) });
    const watch = { response, silent: false };
    if (path.includes('watch=true')) {
      response.flushHeaders();
      watches.add(watch);
    }
    try {
      for await (const chunk of upstream.body) {
        if (!watch.silent && !response.writableEnded) {
          response.write(chunk);
        }
      }
    } catch (error) {
      if (!gone.signal.aborted) {
        throw error;
      }
    } finally {
      watches.delete(watch);
      response.end();
    }
  }

  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return Object.assign(proxy, { connection: { server: `http://127.0.0.1:${port}` } });
}

function pickHeaders({ headers }: IncomingMessage): Record<string, string> {
  const { accept = 'application/json', 'content-type': type } = headers;
  return { accept, ...(type === undefined ? {} : { 'content-type': type }) };
}
