/** A smart plug: a small HTTP server that switches one server on and off, counts the commands, and can be slow or silent. */
import { once } from 'node:events';
import { createServer, type Server as HttpServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { ServerController } from '../../api/v1alpha1/server.ts';

export class Plug implements AsyncDisposable {
  readonly #server: HttpServer;
  /** Commands in the order of their arrival. */
  readonly commands: string[] = [];
  power: 'on' | 'off';
  /** Whether the plug takes connections and answers nothing. */
  isSilent = false;
  /** Whether the plug accepts commands and does nothing. */
  isLying = false;

  private constructor(power: 'on' | 'off') {
    this.power = power;
    this.#server = createServer((request, response) => {
      if (this.isSilent) {
        return;
      }
      if (request.method === 'POST') {
        this.#obey((request.url ?? '').slice(1));
      }
      response.end(`state=${this.power}`);
    });
  }

  static async start(power: 'on' | 'off' = 'on'): Promise<Plug> {
    const plug = new Plug(power);
    plug.#server.listen(0, '127.0.0.1');
    await once(plug.#server, 'listening');
    return plug;
  }

  #obey(command: string): void {
    this.commands.push(command);
    if (!this.isLying) {
      this.power = command === 'off' ? 'off' : 'on';
    }
  }

  get controller(): ServerController {
    const url = `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
    return {
      webhook: {
        onURL: `${url}/on`,
        offURL: `${url}/off`,
        statusURL: `${url}/`,
        pattern: '^state=(on|off)$',
      },
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }
}
