/** Calls the HTTP API with curl on a node, as CI systems in the cluster do: by the name of its Service. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { ClusterNode } from '../../hack/cluster/index.ts';

/** Name of the Service in its namespace. The certificate is for this name. */
export const SERVICE = 'berth-server.berth-system.svc';
/** Time limit of one request, in seconds. A deployment of a VM waits for an emulated guest. */
const LIMIT_SECONDS = '120';

export interface CurlAnswer {
  readonly code: number;
  /** Headers and body as text. */
  readonly said: string;
}

export interface CurlCall {
  readonly method?: string;
  /** Name of a stored token. If absent, the request has no token. */
  readonly as?: string | undefined;
  readonly body?: object | undefined;
  /** Files of a form by their fields. */
  readonly files?: Readonly<Record<string, string>> | undefined;
}

export class Curl {
  readonly #node: ClusterNode;
  /** Folder with tokens and certificates, which the node sees too. */
  readonly #directory: string;
  readonly #address: string;
  readonly #port: number;
  readonly #trust: readonly string[];

  /**
   * `address` and `port` belong to the Service or to a Pod. `trust` is the file with the CA certificate. If it is absent, every certificate
   * is accepted.
   */
  constructor(o: { node: ClusterNode; directory: string; address: string; port?: number; trust?: string }) {
    this.#node = o.node;
    this.#directory = o.directory;
    this.#address = o.address;
    this.#port = o.port ?? 443;
    this.#trust = o.trust === undefined ? ['--insecure'] : ['--cacert', o.trust];
  }

  /** Stores a token under a name. Tokens are in files, because everybody on the machine sees arguments. */
  async storeToken(name: string, token: string): Promise<void> {
    await writeFile(this.#tokenFile(name), `Authorization: Bearer ${token}\n`, { mode: 0o600 });
  }

  /** @throws Error when no answer comes. */
  async call(path: string, call: CurlCall = {}): Promise<CurlAnswer> {
    const shown = ['--include', '--write-out', '\n%{http_code}'];
    const stdout = await this.#node.run('curl', ...shown, ...this.#parameters(path, call));
    const end = stdout.lastIndexOf('\n');
    return { code: Number(stdout.slice(end)), said: stdout.slice(0, end) };
  }

  /** Sends the requests one after the other over one connection, and returns their codes. @throws Error when no answer comes. */
  async codes(calls: readonly (CurlCall & { path: string })[]): Promise<number[]> {
    const shown = ['--output', '/dev/null', '--write-out', '%{http_code}\n'];
    const all = calls.flatMap(({ path, ...call }) => ['--next', ...shown, ...this.#parameters(path, call)]);
    const stdout = await this.#node.run('curl', ...all.slice(1));
    return stdout.trim().split('\n').map(Number);
  }

  #parameters(path: string, { method = 'GET', as, body, files }: CurlCall): string[] {
    const data = files === undefined && method !== 'GET' ? ['--data', JSON.stringify(body ?? {})] : [];
    const form = Object.entries(files ?? {}).flatMap(([field, file]) => ['--form', `${field}=@${file}`]);
    const token = as === undefined ? [] : ['--header', `@${this.#tokenFile(as)}`];
    const address = ['--resolve', `${SERVICE}:${this.#port}:${this.#address}`];
    const options = ['--silent', '--show-error', '--max-time', LIMIT_SECONDS, ...this.#trust, ...address];
    const url = `https://${SERVICE}:${this.#port}${path}`;
    return [...options, ...token, ...data, ...form, '--request', method, url];
  }

  #tokenFile(name: string): string {
    return join(this.#directory, `token-${name}`);
  }
}

/** Returns the JSON body of an answer. */
export function bodyOf({ said }: CurlAnswer): unknown {
  return JSON.parse(said.slice(said.lastIndexOf('\r\n\r\n')));
}
