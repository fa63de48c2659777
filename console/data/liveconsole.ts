/** The serial console of a VM: a terminal, and the stream whose output it shows. */
import { COMMAND_CHANNEL } from '../../kube/channelprotocol.ts';
import { Pace } from '../model/pace.ts';
import { SerialTerminal } from '../model/terminal.ts';
import type { Api } from './api.ts';
import { type StreamState, VMStream, type VMRef } from './vmstream.ts';

/** Shortest time in milliseconds between two renders. A guest can write without a pause. */
const RENDER_MILLISECONDS = 50;

export class LiveConsole {
  readonly terminal = new SerialTerminal();
  state: StreamState = { state: 'connecting' };
  readonly #stream: VMStream;
  readonly #pace: Pace;
  readonly #decoder = new TextDecoder();
  /** What the host says about the end. */
  #status = '';

  /** Connects to the console. `onChange` is called after changes of the terminal or of the state. */
  constructor(api: Api, vm: VMRef, onChange: () => void) {
    this.#pace = new Pace({
      intervalMilliseconds: RENDER_MILLISECONDS,
      act: onChange,
      now: () => performance.now(),
      schedule: setTimeout,
    });
    this.#stream = new VMStream(api, {
      vm,
      stream: 'console',
      events: {
        onOpen: () => this.#change({ state: 'open' }),
        onData: (channel, bytes) => this.#take(channel, bytes),
        onEnd: (reason) => this.#change({ state: 'ended', reason: this.#status || reason }),
      },
    });
  }

  /** Types a text. */
  type(text: string): void {
    this.#stream.send(COMMAND_CHANNEL.stdin, new TextEncoder().encode(text));
  }

  close(): void {
    this.#stream.close();
  }

  #take(channel: number, bytes: Uint8Array): void {
    if (channel === COMMAND_CHANNEL.stdout) {
      this.terminal.write(this.#decoder.decode(bytes, { stream: true }));
      this.#pace.request();
    } else if (channel === COMMAND_CHANNEL.status) {
      this.#status = messageOfStatus(new TextDecoder().decode(bytes));
    }
  }

  #change(state: StreamState): void {
    this.state = state;
    this.#pace.request();
  }
}

/** Returns the message of a Status. It is empty if the text is none. */
function messageOfStatus(text: string): string {
  try {
    const { message } = JSON.parse(text) as { message?: unknown };
    return typeof message === 'string' ? message : '';
  } catch {
    return '';
  }
}
