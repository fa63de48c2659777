/** Whether a guest answers as its VM asks: a TCP connection to a port of the guest's. */
import { connect, type Socket } from 'node:net';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { rest } from '../../base/time.ts';
import type { Pod } from '../../kube/core.ts';
import type { Runtime } from './machine.ts';

type Readiness = NonNullable<Runtime['readiness']>;

/** Until the guest answers, people wait; afterwards a kubelet's period is often enough. */
const NOT_READY_MILLISECONDS = 1_000;
const READY_MILLISECONDS = 10_000;
/** A kubelet's number: a single lost connection does not make a guest unready. */
const FAILURES = 3;
const CONNECT_MILLISECONDS = 1_000;
/** The hypervisor's own forwarding takes every connection, and drops it once the guest has refused it. */
const HOLD_MILLISECONDS = 300;
/** A server may take this long to close after its client. */
const ANSWER_MILLISECONDS = 2_000;

/** Where a guest is to be reached. */
export interface Target {
  host: string;
  port: number;
  /** The hypervisor is in between, and takes connections that nobody in the guest will. */
  forwarded: boolean;
}

/** Whether a machine is ready: known without asking, or to be asked. */
export type Question = { kind: 'answer'; readiness: Readiness } | { kind: 'probe'; target: Target };

const READY: Readiness = { ready: true, message: '' };

/** `forwardAddress`: where the host's reserved ports are reached from the host itself. */
export function questionFor(
  machine: Machine,
  guestAddress: string | undefined,
  forwardAddress: string,
): Question {
  const { readiness, ports } = machine;
  if (readiness.type === 'None') {
    return { kind: 'answer', readiness: READY };
  }
  if (readiness.type === 'GuestAgent' || readiness.port === undefined) {
    return unready('this host cannot ask a guest agent; readiness by port is available');
  }
  const { port } = readiness;
  if (guestAddress !== undefined) {
    return { kind: 'probe', target: { host: guestAddress, port, forwarded: false } };
  }
  const reserved = ports.find((one) => one.guestPort === port && one.protocol === 'TCP');
  return reserved === undefined
    ? unready(
        `guest port ${port} can be asked only by the guest's own address, which is not known yet, or by a reserved port`,
      )
    : { kind: 'probe', target: { host: forwardAddress, port: reserved.hostPort, forwarded: true } };
}

function unready(message: string): Question {
  return { kind: 'answer', readiness: { ready: false, message } };
}

interface Watch {
  target: Target;
  end: AbortController;
}

/** Asks guests whether they are ready, and tells when an answer changes. */
export class ReadinessProber {
  readonly #watches = new Map<string, Watch>();
  readonly #changed: (uid: string) => void;
  readonly #wait: typeof rest;

  /** `wait`: between two questions, for so many milliseconds. */
  constructor(changed: (uid: string) => void, wait = rest) {
    this.#changed = changed;
    this.#wait = wait;
  }

  /** Asks a machine that runs as its VM wants, and asks no other one. The first answer is the one that the Pod shows already. */
  follow(pod: Readonly<Pod>, runtime: Runtime, forwardAddress: string): void {
    const { machine } = runtime.record;
    if (runtime.state.kind !== 'running' || machine === undefined) {
      this.#end(runtime.folder.uid);
      runtime.readiness = undefined;
      return;
    }
    const said = pod.status?.conditions?.find(({ type }) => type === 'Ready');
    runtime.readiness ??= { ready: said?.status === 'True', message: said?.message ?? '' };
    this.watch(runtime, questionFor(machine, runtime.address, forwardAddress));
  }

  watch(runtime: Runtime, question: Question): void {
    const { uid } = runtime.folder;
    if (question.kind === 'answer') {
      this.#end(uid);
      runtime.readiness = question.readiness;
      return;
    }
    const { target } = question;
    const known = this.#watches.get(uid)?.target;
    if (known?.host !== target.host || known.port !== target.port) {
      this.#end(uid);
      const end = new AbortController();
      this.#watches.set(uid, { target, end });
      void this.#run(runtime, target, end.signal);
    }
  }

  close(): void {
    for (const uid of this.#watches.keys()) {
      this.#end(uid);
    }
  }

  #end(uid: string): void {
    this.#watches.get(uid)?.end.abort();
    this.#watches.delete(uid);
  }

  async #run(runtime: Runtime, target: Target, signal: AbortSignal): Promise<void> {
    let failures = 0;
    while (!signal.aborted) {
      const answered = await answers(target);
      failures = answered ? 0 : failures + 1;
      const stays = runtime.readiness?.ready === true && failures < FAILURES;
      if (!signal.aborted) {
        this.#tell(runtime, answered || stays, target);
      }
      await this.#wait(answered ? READY_MILLISECONDS : NOT_READY_MILLISECONDS, signal);
    }
  }

  #tell(runtime: Runtime, ready: boolean, target: Target): void {
    const message = ready ? '' : `nothing answers on ${target.host}:${target.port}`;
    if (runtime.readiness?.ready !== ready || runtime.readiness.message !== message) {
      runtime.readiness = { ready, message };
      this.#changed(runtime.folder.uid);
    }
  }
}

async function answers({ host, port, forwarded }: Target): Promise<boolean> {
  const socket = connect({ host, port, allowHalfOpen: true });
  try {
    const connected = (await next(socket, CONNECT_MILLISECONDS)) === 'connect';
    return connected && (!forwarded || (await isHeld(socket)));
  } finally {
    socket.destroy();
  }
}

/**
 * Whether the guest itself has taken a connection that the hypervisor took first: it says something by itself, or closes
 * when this side has nothing more to say, but not sooner.
 */
async function isHeld(socket: Socket): Promise<boolean> {
  const unasked = await next(socket, HOLD_MILLISECONDS);
  if (unasked !== undefined) {
    return unasked === 'data';
  }
  socket.end();
  const answer = await next(socket, ANSWER_MILLISECONDS);
  return answer === 'data' || answer === 'end';
}

/** The next thing that happens to a connection; undefined when nothing does in time. */
async function next(
  socket: Socket,
  milliseconds: number,
): Promise<'connect' | 'data' | 'end' | 'close' | undefined> {
  const settled = new AbortController();
  const events = ['connect', 'data', 'end', 'close'] as const;
  // An error is followed by `close`; unheard, it would end the process.
  socket.once('error', () => undefined);
  return await new Promise((resolve) => {
    const timer = setTimeout(() => resolve(undefined), milliseconds);
    settled.signal.addEventListener('abort', () => clearTimeout(timer));
    for (const event of events) {
      socket.once(event, () => {
        settled.abort();
        resolve(event);
      });
    }
  });
}
