/** Regularly finds out whether this host can run emulators, and which system images these emulators can use. */
import { isDeepStrictEqual } from 'node:util';
import { messageOf } from '../../base/errors.ts';
import { rest } from '../../base/time.ts';
import type { EmulatorOffer } from '../drivers/driver.ts';
import type { DriverOfEmulators } from '../drivers/hostdrivers.ts';
import type { Network } from '../network/network.ts';
import type { AgentConfig } from './config.ts';

/**
 * Time between two reads of the SDK. The time is long, because people install system images seldom, and a read opens some hundred small
 * files.
 */
const LOOK_MILLISECONDS = 30_000;
/**
 * Time limit of a read of the SDK. The limit is necessary, because a folder on a network file system can fail to answer, and the agent must
 * start even then.
 */
const ANSWER_MILLISECONDS = 10_000;

export class EmulatorOffers {
  readonly #ask: () => Promise<EmulatorOffer>;
  /** The read of the SDK that is under way. While a folder does not answer, no second read begins. */
  #asked: Promise<EmulatorOffer> | undefined;
  #last: EmulatorOffer | undefined;

  constructor(
    { emulator }: Pick<AgentConfig, 'emulator'>,
    { emulators, network }: { emulators: Pick<DriverOfEmulators, 'offer'>; network: Pick<Network, 'name'> },
  ) {
    const refusal = whyNone(emulator, network);
    this.#ask = async () => refusal ?? (await emulators.offer());
  }

  /**
   * Returns the emulators that the host offers now. Never rejects. If the SDK cannot be read, the result is the reason why the host offers
   * no emulators.
   */
  async ask(): Promise<EmulatorOffer> {
    this.#asked ??= this.#ask()
      .catch((error: unknown) => none(`The SDK of the host cannot be read: ${messageOf(error)}`))
      .finally(() => {
        this.#asked = undefined;
      });
    const seconds = ANSWER_MILLISECONDS / 1000;
    const late = new AbortController();
    const limit = rest(ANSWER_MILLISECONDS, late.signal).then(() =>
      none(`The SDK of the host was not read within ${seconds} s`),
    );
    this.#last = await Promise.race([this.#asked, limit]);
    late.abort();
    return this.#last;
  }

  /** Reads the SDK regularly until the signal aborts. Calls `changed` with each offer that differs from the last offer. */
  async run(signal: AbortSignal, changed: (offer: EmulatorOffer) => void): Promise<void> {
    while (!signal.aborted) {
      await rest(LOOK_MILLISECONDS, signal);
      const before = this.#last;
      const offer = await this.ask();
      if (!isDeepStrictEqual(offer, before)) {
        changed(offer);
      }
    }
  }
}

function whyNone(
  emulator: AgentConfig['emulator'],
  { name }: Pick<Network, 'name'>,
): EmulatorOffer | undefined {
  if (emulator === undefined) {
    return none('emulator.sdk is not set in the configuration of the agent of this host');
  }
  return name === 'nat'
    ? undefined
    : none(`The network driver ${name} has no namespaces for emulators; set network.driver to nat`);
}

function none(message: string): EmulatorOffer {
  return { kind: 'none', message };
}
