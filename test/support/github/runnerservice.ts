/**
 * What a runner in a guest needs of GitHub: a small server beside the stub, to which stand-ins for the runner report. It lets them in by the
 * token of their JIT configuration only.
 */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import type { GitHubStub } from './stub.ts';

/**
 * A stand-in for the runner, as the program `run.sh`. It reads its name and its token from the JIT configuration in its environment, as the
 * runner does, comes online, runs one job, and reports its output and its exit code.
 */
export const RUNNER = `#!/bin/sh
file() {
  echo "$ACTIONS_RUNNER_INPUT_JITCONFIG" | base64 -d | sed -n "s/.*\\"$1\\":\\"\\([^\\"]*\\)\\".*/\\1/p" | base64 -d |
    sed -n "s/.*\\"$2\\":\\"\\([^\\"]*\\)\\".*/\\1/p"
}
name=$(file .runner agentName)
token=$(file .credentials token)
report() { wget -q -O - --header "Authorization: Bearer $token" --post-data "$2" "$SERVICE/$name/$1"; }
unset ACTIONS_RUNNER_INPUT_JITCONFIG
job=$(report online '') || exit
output=$(sh -c "$job" 2>&1)
report "done/$?" "$output"
`;

export class RunnerService implements AsyncDisposable {
  readonly #server: Server;
  readonly #stub: GitHubStub;
  readonly #command: string;
  /** Output and exit code of each job, by the name of its runner. */
  readonly results = new Map<string, { readonly output: string; readonly code: number }>();
  /** Requests that were refused. */
  readonly refused: string[] = [];

  private constructor(server: Server, stub: GitHubStub, command: string) {
    this.#server = server;
    this.#stub = stub;
    this.#command = command;
  }

  /** Starts a service whose jobs all run this command of a shell. */
  static async start(stub: GitHubStub, command: string): Promise<RunnerService> {
    const server = createServer();
    const service = new RunnerService(server, stub, command);
    server.on('request', (request, response) => {
      void service.#answer(request).then(
        (answer) => response.writeHead(answer === undefined ? 403 : 200).end(answer),
        (error: unknown) => response.writeHead(500).end(String(error)),
      );
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    return service;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** Returns the command for a runner that comes online. The result is undefined for a runner without the right token, or without a job. */
  async #answer(request: IncomingMessage): Promise<string | undefined> {
    const [, name = '', verb, code] = (request.url ?? '').split('/');
    const output = await text(request);
    const runner = this.#stub.runners.get(name);
    if (runner === undefined || request.headers.authorization !== `Bearer ${runner.token}`) {
      this.refused.push(request.url ?? '');
      return undefined;
    }
    if (verb === 'online') {
      return this.#stub.connect(name).job === undefined ? undefined : this.#command;
    }
    this.results.set(name, { output, code: Number(code) });
    this.#stub.finish(name);
    return '';
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }
}
