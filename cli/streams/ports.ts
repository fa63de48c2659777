/** Connections to ports of a VM. Each one is a WebSocket of its own. */
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
/** Each channel begins with its port. */
const PORT_BYTES = 2;
/**
 * Time without data after which a connection ends, if one of its ends has closed its direction. The protocol cannot tell the guest that the
 * caller has ended only one direction, and an answer comes sooner.
 */
const HALF_OPEN_MILLISECONDS = 10_000;
/** Code with which a connection ends that nobody has closed. */
const LOST = 1006;

interface Ends {
  readonly from: Readable;
  readonly to: Writable;
}

/** Carries one connection until both ends have closed it. @throws CommandError with the words of the host; ApiError; the signal's reason. */
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
    // A socket is one stream. Its sender would lose what it has not read yet.
    if ((from as unknown) !== to) {
      over();
    }
    timer.start();
  });
  const [up, down] = await Promise.allSettled([sent, received]);
  timer.stop();
  // An error of the caller's end is known there.
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

/** Ends a connection that is open in one direction only and idle. */
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

/** Drops the port at the beginning. `onData` is called for each piece. */
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
