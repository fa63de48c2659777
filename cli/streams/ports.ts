/** Connects to ports of a VM. Each connection has its own WebSocket. */
import type { Readable, Transform, Writable } from 'node:stream';
import { Transform as TransformStream } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { PORT_PROTOCOL } from '../../kube/channels.ts';
import type { Cluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import { printable } from '../text.ts';
import { streamPath, withoutPod } from './machine.ts';
import { wordsIn } from './words.ts';

const CHANNEL = { data: 0, error: 1 } as const;
/** Length in bytes of the port number at the beginning of each channel. */
const PORT_BYTES = 2;
/**
 * Time without data after which a half-open connection ends. A connection is half-open if one end has closed its direction and the other
 * end has not. The protocol cannot tell the guest that the caller has closed its direction, so the guest might never close its direction.
 * Guests usually answer within this time.
 */
const HALF_OPEN_MILLISECONDS = 10_000;
/** Close code that a WebSocket reports if the connection is lost before either end has closed it. */
const LOST = 1006;

interface Ends {
  readonly from: Readable;
  readonly to: Writable;
}

/**
 * Carries the data of one connection until both ends have closed it.
 *
 * @throws CommandError with the message of the host, or when the connection is lost; ApiError; the signal's reason when the signal aborts.
 */
export async function carry(
  cluster: Cluster,
  { name, port }: { name: string; port: number },
  { from, to }: Ends,
  signal: AbortSignal,
): Promise<void> {
  const path = streamPath(cluster, name, 'portforward', [['ports', port]]);
  const numbers = Object.values(CHANNEL);
  const request = { path, protocol: PORT_PROTOCOL, numbers, signal };
  const channels = await cluster.watches.channels(request).catch((error: unknown) => {
    throw withoutPod(error, name);
  });
  const data = channels.channel(CHANNEL.data);
  let isOver = false;
  const over = (): void => {
    isOver = true;
    channels.close();
    from.destroy();
  };
  const timer = new HalfOpenTimer(over);
  const words = wordsIn(channels.channel(CHANNEL.error), PORT_BYTES);
  const sent = pipeline(from, data).finally(() => timer.start());
  const received = pipeline(
    data,
    withoutPort(() => timer.used()),
    to,
  ).finally(() => {
    // If `from` and `to` are the same socket, this code must not destroy the socket. Otherwise the program at the other end would lose data
    // that it has not read yet.
    if ((from as unknown) !== to) {
      over();
    }
    timer.start();
  });
  const [up, down] = await Promise.allSettled([sent, received]);
  timer.stop();
  // If one direction failed, the program at the caller's end already sees the error. Therefore this function does not also report a lost
  // connection.
  isOver ||= up.status === 'rejected' || down.status === 'rejected';
  channels.close();
  const [{ code }, message] = await Promise.all([channels.ended, words]);
  signal.throwIfAborted();
  if (message !== '') {
    throw new CommandError(printable(message));
  }
  if (code === LOST && !isOver) {
    throw new CommandError(`The connection to VM ${name} was lost`, EXIT.noAnswer);
  }
}

/** Ends a half-open connection after {@link HALF_OPEN_MILLISECONDS} without data. */
class HalfOpenTimer {
  readonly #over: () => void;
  #timer: NodeJS.Timeout | undefined;

  constructor(over: () => void) {
    this.#over = over;
  }

  start(): void {
    this.#timer ??= setTimeout(this.#over, HALF_OPEN_MILLISECONDS);
  }

  used(): void {
    this.#timer?.refresh();
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}

/** Returns a stream that drops the port number at the beginning. It calls `onData` for each piece of data. */
function withoutPort(onData: () => void = () => undefined): Transform {
  let left = PORT_BYTES;
  return new TransformStream({
    transform(chunk: Buffer, _, done) {
      const skipped = Math.min(left, chunk.length);
      left -= skipped;
      onData();
      done(null, chunk.subarray(skipped));
    },
  });
}
