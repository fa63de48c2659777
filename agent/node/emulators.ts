/** Finds out which emulators this host can run, and computes the labels and the condition with which its Node shows them. */
import { isDeepStrictEqual } from 'node:util';
import { SYSTEM_IMAGE_LABEL_PREFIX } from '../../api/v1alpha1/names.ts';
import { messageOf } from '../../base/errors.ts';
import { rest } from '../../base/time.ts';
import type { EmulatorOffer } from '../drivers/driver.ts';
import type { DriverOfEmulators } from '../drivers/hostdrivers.ts';
import type { Network } from '../network/network.ts';

/** Largest number of system images that a Node lists. A complete SDK has about 64 system images for one architecture. */
const LISTED_IMAGES = 64;
/** Largest number of unlisted system images that the condition's message names, so that the message stays readable. */
const NAMED_IMAGES = 8;
/** Largest length and allowed characters of a label name without its prefix. Kubernetes sets these limits. */
const LABEL_NAME_LENGTH = 63;
const LABEL_NAME = /^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/;

/**
 * Time between two reads of the SDK. The time is long, because people seldom install system images, and each read can open several hundred
 * small files.
 */
const LOOK_MILLISECONDS = 30_000;
/**
 * Time limit of a read of the SDK. The limit is necessary, because a folder on a network file system can fail to answer, and the agent must
 * start even then.
 */
const ANSWER_MILLISECONDS = 10_000;

/** The settings of the agent that determine whether the host runs emulators. */
interface Settings {
  emulator?: { sdk: string } | undefined;
}

/** Regularly finds out whether this host can run emulators, and which system images these emulators can use. */
export class EmulatorOffers {
  readonly #ask: () => Promise<EmulatorOffer>;
  /** The read of the SDK that is under way. No second read begins before this read has ended, even if the SDK's folder does not answer. */
  #asked: Promise<EmulatorOffer> | undefined;
  #last: EmulatorOffer | undefined;

  constructor(
    { emulator }: Settings,
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

  /** Reads the SDK regularly until the signal aborts. Calls `changed` when the emulators that the host offers have changed. */
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

function whyNone(emulator: Settings['emulator'], { name }: Pick<Network, 'name'>): EmulatorOffer | undefined {
  if (emulator === undefined) {
    return none('emulator.sdk is not set in the configuration of the agent of this host');
  }
  return name === 'nat'
    ? undefined
    : none(`The network driver ${name} has no network namespaces for emulators; set network.driver to nat`);
}

function none(message: string): EmulatorOffer {
  return { kind: 'none', message };
}

function isLabelName(name: string): boolean {
  return name.length <= LABEL_NAME_LENGTH && LABEL_NAME.test(name);
}

function listedImages(offer: EmulatorOffer): string[] {
  return offer.kind === 'none'
    ? []
    : offer.systemImages.filter(isLabelName).toSorted().slice(0, LISTED_IMAGES);
}

/** Returns one label for each system image that the host offers. */
export function emulatorLabels(offer: EmulatorOffer): Record<string, string> {
  return Object.fromEntries(listedImages(offer).map((name) => [SYSTEM_IMAGE_LABEL_PREFIX + name, '']));
}

/**
 * Returns whether the host offers emulators, and the message of the Node's condition for emulators. The message names the system images for
 * which the Node has no label.
 */
export function emulatorCondition(offer: EmulatorOffer): { offered: boolean; message: string } {
  if (offer.kind === 'none') {
    return { offered: false, message: offer.message };
  }
  const listed = new Set(listedImages(offer));
  const others = offer.systemImages.filter((name) => !listed.has(name)).toSorted();
  const count = listed.size === 1 ? '1 system image' : `${listed.size} system images`;
  return { offered: true, message: `The host has ${count} for emulators${formatLeftOut(others)}` };
}

function formatLeftOut(names: readonly string[]): string {
  if (names.length === 0) {
    return '';
  }
  const named = names
    .slice(0, NAMED_IMAGES)
    .map((name) => JSON.stringify(name.slice(0, LABEL_NAME_LENGTH + 1)));
  const more = names.length > NAMED_IMAGES ? ` and ${names.length - NAMED_IMAGES} more` : '';
  const why = `a Node lists at most ${LISTED_IMAGES} system images, and only those whose name is a valid label name`;
  return `. Its Node does not list ${named.join(', ')}${more}: ${why}`;
}
