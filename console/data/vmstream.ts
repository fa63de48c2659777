/**
 * Streams of a VM over a WebSocket to the server: its serial console and its screen. A stream has several channels, and the first byte of
 * each message is the number of its channel.
 */
import { COMMAND_PROTOCOL, PORT_PROTOCOL } from '../../kube/channelprotocol.ts';
import type { Api } from './api.ts';
import { RefusedRequestError } from './refusal.ts';

/** Protocols of the streams. Hosts know no other ones for them. */
const PROTOCOLS = { console: COMMAND_PROTOCOL, vnc: PORT_PROTOCOL } as const;
/** Largest number of bytes in one message. The server takes 65 KiB. */
const SENT_BYTES = 32 * 1024;

export interface VMRef {
  readonly namespace: string;
  readonly name: string;
}

/** State of a stream for people. */
export type StreamState =
  | { readonly state: 'connecting' }
  | { readonly state: 'open' }
  | { readonly state: 'ended'; readonly reason: string };

export interface StreamEvents {
  readonly onOpen: () => void;
  readonly onData: (channel: number, bytes: Uint8Array<ArrayBuffer>) => void;
  /** Called once, with the reason why the stream has ended. It is empty for an end without a reason. */
  readonly onEnd: (reason: string) => void;
}

/** Returns the path of a stream. */
function pathOf({ namespace, name }: VMRef, stream: keyof typeof PROTOCOLS): string {
  return `/console/streams/namespaces/${encodeURIComponent(namespace)}/vms/${encodeURIComponent(name)}/${stream}`;
}

export class VMStream {
  readonly #socket: WebSocket;

  constructor(
    api: Api,
    { vm, stream, events }: { vm: VMRef; stream: keyof typeof PROTOCOLS; events: StreamEvents },
  ) {
    const path = pathOf(vm, stream);
    const socket = api.webSocket(path, PROTOCOLS[stream]);
    let isOpen = false;
    socket.addEventListener('open', () => {
      isOpen = true;
      events.onOpen();
    });
    socket.addEventListener('message', ({ data }) => {
      // A text would be taken as a number of bytes.
      if (!(data instanceof ArrayBuffer)) {
        return;
      }
      const bytes = new Uint8Array(data);
      events.onData(bytes[0] ?? 0, bytes.subarray(1));
    });
    socket.addEventListener('close', ({ reason }) => {
      if (isOpen) {
        events.onEnd(reason);
      } else {
        // A browser does not tell a page why a WebSocket was refused.
        void whyRefused(api, path).then(events.onEnd);
      }
    });
    this.#socket = socket;
  }

  get isOpen(): boolean {
    return this.#socket.readyState === WebSocket.OPEN;
  }

  /** Sends bytes on a channel. They are dropped if the stream is not open. */
  send(channel: number, bytes: Uint8Array): void {
    if (!this.isOpen) {
      return;
    }
    for (let at = 0; at < bytes.length; at += SENT_BYTES) {
      const part = bytes.subarray(at, at + SENT_BYTES);
      const message = new Uint8Array(part.length + 1);
      message[0] = channel;
      message.set(part, 1);
      this.#socket.send(message);
    }
  }

  close(): void {
    this.#socket.close();
  }
}

async function whyRefused(api: Api, path: string): Promise<string> {
  const error = await api.whyRefused(path);
  return error instanceof RefusedRequestError ? error.message : 'The server does not answer';
}
