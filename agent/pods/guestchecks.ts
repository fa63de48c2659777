/** Runs all regular checks of running guests: whether the guest agent answers, whether Android has booted, and whether a port answers. */
import { isDeepStrictEqual } from 'node:util';
import type { GuestFacts } from '../../api/v1alpha1/machine.ts';
import { ADB_PORT } from '../../api/v1alpha1/names.ts';
import { rest } from '../../base/time.ts';
import type { Pod } from '../../kube/core.ts';
import type { GuestAnswer, GuestQuestion } from '../drivers/driver.ts';
import { askBooted, type BootAnswer } from '../drivers/emulator/adb.ts';
import { driverOfVM } from '../drivers/hostdrivers.ts';
import { FAILURES, type GuestCheck, GuestLoops, GuestPatience, PERIODS } from './guestloop.ts';
import type { PodHost } from './host.ts';
import type { MachineRecord, Runtime } from './machine.ts';
import { lastReport } from './pod.ts';
import { portsOf } from './ports.ts';
import { type OpenForward, PortCheck, questionFor } from './readiness.ts';

type Readiness = NonNullable<Runtime['readiness']>;

/**
 * Messages for users about an emulator whose Android has not booted or does not answer. The messages contain no text from the guest,
 * because the guest can choose any text.
 */
const BOOTING: Readonly<Record<Exclude<BootAnswer['kind'], 'booted'>, string>> = {
  silent: 'Android is booting; ADB does not answer yet',
  booting: 'Android is booting; ADB answers, and the boot is not complete yet',
  wantsKey:
    'ADB requires a key, so the host cannot see whether Android has booted; use a system image whose ADB does not require a key',
  wrong: `Android is booting; port ${ADB_PORT} answers, but not as ADB`,
};
const LOST: typeof BOOTING = {
  silent: 'Android has booted, but ADB no longer answers',
  booting: 'Android is booting again; ADB answers, and the boot is not complete yet',
  wantsKey: 'Android has booted, but ADB now requires a key',
  wrong: `Android has booted, but port ${ADB_PORT} no longer answers as ADB`,
};

/** Functions that tests replace. */
interface Replaceable {
  askBooted?: typeof askBooted;
  wait?: typeof rest;
}

export class GuestChecks {
  readonly #host: PodHost;
  readonly #askBooted: typeof askBooted;
  /** Checks of guest agents, and of the boot of emulators. A machine has only one of them. */
  readonly #guests: GuestLoops<AgentCheck | BootCheck>;
  readonly #ports: GuestLoops<PortCheck>;
  /** Machines that this agent has seen without a process. */
  readonly #seenOff = new WeakSet<Runtime>();

  /** `changed` is called with a machine's uid when the result of a check has changed. */
  constructor(host: PodHost, changed: (uid: string) => void, replaced: Replaceable = {}) {
    this.#host = host;
    this.#askBooted = replaced.askBooted ?? askBooted;
    const onError = (uid: string, error: unknown): void =>
      host.logger.error({ uid, err: error }, 'The answer of a guest could not be processed');
    const options = { changed, onError, wait: replaced.wait ?? rest };
    this.#guests = new GuestLoops(options);
    this.#ports = new GuestLoops(options);
  }

  /**
   * If the Pod's machine runs, starts its checks. Otherwise ends the checks. If the machine continued to run during a restart of the agent,
   * the Pod's last report applies until the first results. If the agent has seen the machine stopped, the report is ignored, because the
   * cached Pod can contain an old report for some time.
   */
  follow(pod: Readonly<Pod>, runtime: Runtime): void {
    if (runtime.state.kind !== 'running') {
      this.#seenOff.add(runtime);
      this.forget(runtime.folder.uid);
      runtime.guest = undefined;
      runtime.readiness = undefined;
      return;
    }
    const { status: _status, ...unreported } = pod;
    const known = this.#seenOff.has(runtime) ? unreported : pod;
    if (runtime.record.emulator !== undefined) {
      this.#followBoot(known, runtime);
      return;
    }
    this.#followAgent(known, runtime);
    this.#followReadiness(known, runtime);
  }

  /** Ends the checks of a machine whose Pod no longer exists, because the machine's address might soon belong to another machine. */
  forget(uid: string): void {
    this.#guests.forget(uid);
    this.#ports.forget(uid);
  }

  close(): void {
    this.#guests.close();
    this.#ports.close();
  }

  #followBoot(pod: Readonly<Pod>, runtime: Runtime): void {
    const { record, folder } = runtime;
    if (this.#guests.check(folder.uid) === undefined) {
      runtime.readiness =
        record.booted === true ? reportedReadiness(pod) : bootReadiness({ kind: 'silent' }, record);
      const saveBooted = (): void => this.#host.records.update(record, { booted: true });
      this.#guests.start(folder.uid, new BootCheck(runtime, this.#askBooted, saveBooted));
    }
  }

  #followAgent(pod: Readonly<Pod>, runtime: Runtime): void {
    const { uid } = runtime.folder;
    if (this.#guests.check(uid) === undefined) {
      const { guestAgentConnected: connected, guest: facts } = lastReport(pod);
      runtime.guest = connected === undefined ? undefined : { connected, facts };
      this.#guests.start(
        uid,
        new AgentCheck(runtime, async (question) => await this.#askAgent(runtime, question)),
      );
    }
  }

  #followReadiness(pod: Readonly<Pod>, runtime: Runtime): void {
    const { uid } = runtime.folder;
    const { machine } = runtime.record;
    if (machine === undefined) {
      runtime.readiness = undefined;
      return;
    }
    runtime.readiness ??= reportedReadiness(pod);
    const ports = portsOf(runtime.record);
    const question = questionFor({ ...machine, ports }, runtime, this.#host.forwardAddress);
    if (question.kind === 'answer') {
      this.#ports.forget(uid);
      runtime.readiness = question.readiness ?? runtime.readiness;
    } else if (!isDeepStrictEqual(question.target, this.#ports.check(uid)?.target)) {
      const open: OpenForward = async (guestPort) => await this.#openForward(runtime, guestPort);
      this.#ports.start(uid, new PortCheck(runtime, question.target, open));
    }
  }

  async #openForward({ record, folder }: Runtime, guestPort: number): ReturnType<OpenForward> {
    try {
      return await driverOfVM(this.#host, record).forwardPort(folder, guestPort);
    } catch (error) {
      this.#host.logger.debug({ uid: folder.uid, err: error }, 'A port of a guest could not be forwarded');
      return undefined;
    }
  }

  async #askAgent({ record, folder }: Runtime, question: GuestQuestion): Promise<GuestAnswer> {
    try {
      return await driverOfVM(this.#host, record).askGuest(folder, question);
    } catch (error) {
      this.#host.logger.debug({ uid: folder.uid, err: error }, 'A request to a guest agent failed');
      return { kind: 'silent' };
    }
  }
}

/** Returns the readiness from the Pod's condition `Ready`. The agent might have written this condition before its restart. */
function reportedReadiness({ status }: Readonly<Pod>): Readiness {
  const ready = status?.conditions?.find(({ type }) => type === 'Ready');
  return { ready: ready?.status === 'True', message: ready?.message ?? '' };
}

/** Asks a running emulator over ADB whether Android has booted. After the boot, continues to ask whether Android answers. */
class BootCheck implements GuestCheck<BootAnswer> {
  readonly #runtime: Runtime;
  readonly #askBooted: typeof askBooted;
  /** Saves in the record that Android has booted in this run. */
  readonly #saveBooted: () => void;
  readonly #patience = new GuestPatience();
  /** Number of answers in a row that were not `booted`. */
  #failures = 0;
  /** Number of answers in a row that have the same kind as the last answer. */
  #same = 0;
  #last: BootAnswer['kind'] | undefined;

  constructor(runtime: Runtime, ask: typeof askBooted, saveBooted: () => void) {
    this.#runtime = runtime;
    this.#askBooted = ask;
    this.#saveBooted = saveBooted;
  }

  get pauseMilliseconds(): number {
    const isFine = this.#runtime.record.booted === true && this.#failures === 0;
    return isFine ? PERIODS.fine : PERIODS.booting;
  }

  async ask(signal: AbortSignal): Promise<BootAnswer | undefined> {
    const { address, state } = this.#runtime;
    if (state.kind === 'running' && state.paused) {
      // A paused guest cannot answer even if Android works.
      return undefined;
    }
    return address === undefined
      ? { kind: 'silent', message: 'The emulator has no address' }
      : await this.#askBooted({ host: address, port: ADB_PORT }, signal);
  }

  take(answer: BootAnswer): boolean {
    const { record, readiness: before } = this.#runtime;
    const isFirst = answer.kind === 'booted' && record.booted !== true;
    if (isFirst) {
      this.#saveBooted();
    }
    const after = this.#readinessAfter(answer, bootReadiness(answer, record), before);
    this.#runtime.readiness = after;
    return isFirst || !isDeepStrictEqual(after, before);
  }

  /**
   * Returns the readiness after an answer. `before` is the present readiness, and `next` is the readiness that fits this answer. If Android
   * has booted and answers, the result is `next` at once. Otherwise the result is `next` after enough failed requests in a row, and
   * `before` until then.
   */
  #readinessAfter({ kind }: BootAnswer, next: Readiness, before: Readiness | undefined): Readiness {
    this.#failures = kind === 'booted' ? 0 : this.#failures + 1;
    this.#same = kind === this.#last ? this.#same + 1 : 1;
    this.#last = kind;
    if (before === undefined || kind === 'booted' || isDeepStrictEqual(next, before)) {
      return next;
    }
    const { factor } = this.#patience;
    const isEnough = before.ready ? this.#failures >= FAILURES * factor : this.#same >= factor;
    if (!isEnough) {
      return before;
    }
    this.#patience.grow();
    return next;
  }
}

function bootReadiness({ kind }: Pick<BootAnswer, 'kind'>, { booted }: Readonly<MachineRecord>): Readiness {
  if (kind === 'booted') {
    return { ready: true, message: 'Android has booted, and ADB answers' };
  }
  return { ready: false, message: (booted === true ? LOST : BOOTING)[kind] };
}

/** Asks a guest whether its guest agent answers, and for facts about the guest. */
class AgentCheck implements GuestCheck<GuestAnswer> {
  pauseMilliseconds: number = PERIODS.silent;
  readonly #runtime: Runtime;
  readonly #askAgent: (question: GuestQuestion) => Promise<GuestAnswer>;
  /** Whether users wait for the guest agent, because the readiness of the VM depends on the guest agent. */
  readonly #isAwaited: boolean;
  readonly #patience = new GuestPatience();
  #failures = 0;
  #nextSilentMilliseconds: number = PERIODS.silent;
  /** Time of the next request for facts, in milliseconds since the start of this process. */
  #nextFacts = 0;

  constructor(runtime: Runtime, ask: (question: GuestQuestion) => Promise<GuestAnswer>) {
    this.#runtime = runtime;
    this.#askAgent = ask;
    this.#isAwaited = runtime.record.machine?.readiness.type === 'GuestAgent';
  }

  async ask(signal: AbortSignal): Promise<GuestAnswer> {
    const hasAddress = (this.#runtime.guest?.facts?.addresses ?? []).length > 0;
    return await this.#askAgent({ facts: !hasAddress || performance.now() >= this.#nextFacts, signal });
  }

  take(answer: GuestAnswer): boolean {
    const before = this.#runtime.guest;
    this.pauseMilliseconds = PERIODS.silent;
    if (answer.kind === 'answers') {
      this.#runtime.guest = this.#answered(answer.facts, before);
    } else if (answer.kind === 'silent') {
      this.#runtime.guest = this.#silent(before);
    }
    return !isDeepStrictEqual(this.#runtime.guest, before);
  }

  #answered(facts: GuestFacts | undefined, guest: Runtime['guest']): Runtime['guest'] {
    this.pauseMilliseconds = PERIODS.fine;
    this.#failures = 0;
    this.#nextSilentMilliseconds = PERIODS.silent;
    if (facts !== undefined) {
      this.#nextFacts = performance.now() + PERIODS.facts;
    }
    return { connected: true, facts: facts ?? guest?.facts };
  }

  /**
   * Returns the state of the guest after a request without an answer. The result is undefined if the guest agent has never answered, and
   * users do not wait for the guest agent.
   */
  #silent(guest: Runtime['guest']): Runtime['guest'] {
    this.#failures += 1;
    if (guest?.connected === true) {
      if (this.#failures < FAILURES * this.#patience.factor) {
        return guest;
      }
      this.#patience.grow();
      return { ...guest, connected: false };
    }
    if (this.#isAwaited) {
      return guest ?? { connected: false, facts: undefined };
    }
    this.pauseMilliseconds = this.#nextSilentMilliseconds;
    this.#nextSilentMilliseconds = Math.min(2 * this.pauseMilliseconds, PERIODS.longestSilent);
    return guest;
  }
}
