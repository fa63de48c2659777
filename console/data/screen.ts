/** The screen of a VM, drawn by noVNC. The library is a file of its own, which is loaded when somebody opens a screen. */
import { PORT_CHANNEL } from '../../kube/channelprotocol.ts';
import type { Api } from './api.ts';
import { VMStream, type VMRef } from './vmstream.ts';

/** The part of noVNC that the page uses. */
export interface Viewer extends EventTarget {
  scaleViewport: boolean;
  background: string;
  disconnect(): void;
  sendCtrlAltDel(): void;
  blur(): void;
}
type ViewerClass = new (target: HTMLElement, channel: ScreenChannel, options: { shared: boolean }) => Viewer;

export interface ScreenEvents {
  readonly onConnected: () => void;
  /** Called once, with the reason why the screen is no longer shown. */
  readonly onEnd: (reason: string) => void;
}

/** Shows the screen in the element. Returns the viewer, or undefined if the signal has aborted. @throws TypeError when noVNC cannot be loaded. */
export async function showScreen(
  target: HTMLElement,
  { api, vm, signal, events }: { api: Api; vm: VMRef; signal: AbortSignal; events: ScreenEvents },
): Promise<Viewer | undefined> {
  const address = document.getElementById('page')?.dataset['novnc'] ?? '';
  const { default: RFB } = (await import(address)) as { default: ViewerClass };
  if (signal.aborted) {
    return undefined;
  }
  const channel = new ScreenChannel(api, vm);
  const viewer = new RFB(target, channel, { shared: true });
  viewer.scaleViewport = true;
  // The style sheet has the colour around the screen.
  viewer.background = 'transparent';
  viewer.addEventListener('connect', events.onConnected);
  viewer.addEventListener('disconnect', () => events.onEnd(channel.reason));
  signal.addEventListener('abort', () => viewer.disconnect());
  return viewer;
}

/** The stream of a screen, with the functions of a WebSocket that noVNC uses. */
class ScreenChannel {
  binaryType = 'arraybuffer';
  readonly protocol = '';
  onopen: (() => void) | null = null;
  onmessage: ((message: { data: ArrayBuffer }) => void) | null = null;
  onerror: (() => void) | null = null;
  onclose: ((end: { code: number; reason: string }) => void) | null = null;
  /** Why the stream has ended. */
  reason = '';
  readyState: number = WebSocket.CONNECTING;
  readonly #stream: VMStream;
  /** Channels whose first message has come. It has the number of the port, and no data. */
  readonly #begun = new Set<number>();

  constructor(api: Api, vm: VMRef) {
    this.#stream = new VMStream(api, {
      vm,
      stream: 'vnc',
      events: {
        onOpen: () => {
          this.readyState = WebSocket.OPEN;
          this.onopen?.();
        },
        onData: (channel, bytes) => this.#take(channel, bytes),
        onEnd: (reason) => {
          this.readyState = WebSocket.CLOSED;
          this.reason ||= reason;
          this.onclose?.({ code: 1000, reason: this.reason });
        },
      },
    });
  }

  send(bytes: Uint8Array): void {
    this.#stream.send(PORT_CHANNEL.data, bytes);
  }

  close(): void {
    this.readyState = WebSocket.CLOSING;
    this.#stream.close();
  }

  #take(channel: number, bytes: Uint8Array<ArrayBuffer>): void {
    if (!this.#begun.has(channel)) {
      this.#begun.add(channel);
    } else if (channel === PORT_CHANNEL.data) {
      this.onmessage?.({ data: bytes.slice().buffer });
    } else {
      this.reason = new TextDecoder().decode(bytes);
    }
  }
}
