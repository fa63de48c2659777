/**
 * Sets the DPI of a machine's screen over QEMU's D-Bus display. The agent sends QEMU the physical size of the screen. The guest reads this
 * size from the screen's EDID, and computes the DPI from it.
 */
import type { Logger } from 'pino';
import * as z from 'zod';
import { VM_FIELDS } from '../../../api/v1alpha1/fields.ts';
import { Backoff } from '../../../base/backoff.ts';
import { messageOf } from '../../../base/errors.ts';
import { rest } from '../../../base/time.ts';
import type { MachineFolder, MachineState } from '../driver.ts';
import { readBody } from './dbus.ts';
import { connectDisplay, type DBusConnection, DBusError } from './dbusconnection.ts';
import { displayState } from './displaycard.ts';
import type { Hypervisor } from './hypervisor.ts';
import { beginningOf, type QmpEvent } from './qmp.ts';
import { readMachineFile, type Screen } from './state.ts';

type Display = NonNullable<Screen['display']>;

const CONSOLE_PATH = '/org/qemu/Display1/Console_0';
const CONSOLE_INTERFACE = 'org.qemu.Display1.Console';
const PROPERTIES_INTERFACE = 'org.freedesktop.DBus.Properties';
const MILLIMETERS_PER_INCH = 25.4;
/**
 * Times to wait between attempts to set the DPI. The times grow up to a minute, because the likely causes of a failure persist: the host is
 * overloaded, or QEMU refuses every attempt.
 */
const RETRY = { firstMilliseconds: 1_000, capMilliseconds: 60_000 };
/**
 * Time to wait after a change of the screen's size, because more changes usually follow. A guest changes the size several times when it
 * boots. A VNC client changes the size several times while a user drags its window.
 */
const PAUSE_MILLISECONDS = 300;

/** Limit of the text of an error in the VM's condition. The log of the agent has the whole error. */
const FAULT_LIMIT_CHARACTERS = 100;
const NO_DBUS =
  'QEMU on the host has no D-Bus display, or QEMU cannot set the DPI of the VM’s graphics card. Upgrade QEMU, then stop and start the VM';

const propertiesSchema = z.tuple([beginningOf(z.tuple([z.string(), z.unknown()]))]);
const sizeSchema = z.object({ Width: z.number().int().min(1), Height: z.number().int().min(1) });

/** Limit of width and height in pixels. QEMU writes the size into a field of 12 bits, as the EDID standard for screens requires. */
const LARGEST = 4095;

interface Watched {
  /** Hypervisor that this agent watches, if any. */
  readonly watched: Pick<Hypervisor, 'qmp'> | undefined;
}

interface DpiContext {
  logger: Logger;
  changed: (uid: string) => void;
}

export class DisplayDpi {
  readonly #folder: MachineFolder;
  readonly #machine: Watched;
  readonly #context: DpiContext;
  #following: AbortController | undefined;
  #shown: ReturnType<typeof displayState>;

  constructor(folder: MachineFolder, machine: Watched, context: DpiContext) {
    this.#folder = folder;
    this.#machine = machine;
    this.#context = context;
  }

  /**
   * Begins to set the DPI of the machine's screen. `started` means that the agent has just started the process. `found` means that the
   * agent found the process after its own restart.
   */
  follow(how: 'started' | 'found'): void {
    this.close();
    const following = new AbortController();
    this.#following = following;
    this.#keep(how, following.signal).catch((error: unknown) => {
      this.#context.logger.error(
        { uid: this.#folder.uid, err: error },
        'Setting the DPI of a machine’s screen failed, and the agent does not try again',
      );
    });
  }

  /** Returns the machine's state with the state of its screen. If the machine does not run, the function also stops setting the DPI. */
  addTo(state: MachineState): MachineState {
    if (state.kind !== 'running') {
      this.close();
      return state;
    }
    return this.#shown === undefined ? state : { ...state, display: this.#shown };
  }

  close(): void {
    this.#following?.abort();
    this.#following = undefined;
    this.#shown = undefined;
  }

  async #keep(how: 'started' | 'found', signal: AbortSignal): Promise<void> {
    const screen = (await readMachineFile(this.#folder.path))?.launched?.screen;
    if (screen?.display === undefined || signal.aborted) {
      return;
    }
    if (!screen.dbus) {
      this.#show(screen, NO_DBUS);
      return;
    }
    const backoff = new Backoff(RETRY);
    while (!signal.aborted) {
      try {
        await this.#serve(screen, screen.display, { how, signal, onServing: () => backoff.reset() });
      } catch (error) {
        if (!signal.aborted) {
          this.#context.logger.warn(
            { uid: this.#folder.uid, err: error },
            'The DPI of a machine was not set',
          );
          this.#show(screen, `${messageOf(error).slice(0, FAULT_LIMIT_CHARACTERS)}; the host tries again`);
        }
      }
      await rest(backoff.next(), signal);
    }
  }

  /**
   * Sets the DPI, and sets it again when the size of the screen changes. Calls `onServing` when the DPI is set. Resolves when the connection
   * is closed or the signal aborts.
   */
  async #serve(
    screen: Screen,
    display: Display,
    { how, signal, onServing }: { how: 'started' | 'found'; signal: AbortSignal; onServing: () => void },
  ): Promise<void> {
    const qmp = await this.#machine.watched?.qmp();
    const dbus = await connectDisplay(this.#folder.path, signal);
    const followed = new FollowedSize(display);
    const onEvent = ({ event }: QmpEvent) => (event === 'RESET' ? followed.boots() : undefined);
    const close = () => dbus.close();
    qmp?.on('event', onEvent);
    signal.addEventListener('abort', close);
    try {
      signal.throwIfAborted();
      if (how === 'started') {
        await setSize(dbus, display, display.dpi);
      }
      this.#show(screen);
      onServing();
      let isFirst = how === 'found';
      await eachChange(dbus, signal, async () => {
        const size = await sizeOf(dbus);
        const isMeant = isFirst ? followed.adopt(size) : followed.counts(size);
        isFirst = false;
        if (isMeant) {
          await setSize(dbus, size, display.dpi);
        }
      });
    } finally {
      qmp?.off('event', onEvent);
      signal.removeEventListener('abort', close);
      close();
    }
  }

  #show(screen: Screen, fault?: string): void {
    const shown = displayState(screen, fault);
    const isNews = shown?.message !== this.#shown?.message;
    this.#shown = shown;
    if (isNews) {
      this.#context.changed(this.#folder.uid);
    }
  }
}

/**
 * Calls `work` after changes of the screen, one call at a time. All changes during a call together cause one more call. Resolves when
 * `dbus` is closed.
 */
async function eachChange(
  dbus: DBusConnection,
  signal: AbortSignal,
  work: () => Promise<void>,
): Promise<void> {
  let change = Promise.withResolvers<void>();
  dbus.on('signal', ({ path, interface: of }) => {
    if (path === CONSOLE_PATH && of === PROPERTIES_INTERFACE) {
      change.resolve();
    }
  });
  dbus.on('close', () => change.resolve());
  // The first call of `work` does not wait for a change, because the screen might have changed before the listener was added.
  change.resolve();
  while (!dbus.closed) {
    await change.promise;
    change = Promise.withResolvers<void>();
    await rest(PAUSE_MILLISECONDS, signal);
    if (!dbus.closed) {
      await work();
    }
  }
}

async function sizeOf(dbus: DBusConnection): Promise<Size> {
  const answer = await dbus.call({
    path: CONSOLE_PATH,
    interface: PROPERTIES_INTERFACE,
    member: 'GetAll',
    type: 's',
    values: [CONSOLE_INTERFACE],
  });
  const { data } = propertiesSchema.safeParse(readBody(answer));
  if (data === undefined) {
    throw new DBusError('QEMU gave an invalid answer to GetAll');
  }
  const { Width: width, Height: height } = sizeSchema.parse(Object.fromEntries(data[0]));
  return { width, height };
}

async function setSize(dbus: DBusConnection, { width, height }: Size, dpi: number): Promise<void> {
  const [wide, high] = [millimeters(width, dpi), millimeters(height, dpi)];
  await dbus.call({
    path: CONSOLE_PATH,
    interface: CONSOLE_INTERFACE,
    member: 'SetUIInfo',
    type: 'qqiiuu',
    values: [wide, high, 0, 0, width, height],
  });
}

function millimeters(pixels: number, dpi: number): number {
  return Math.round((pixels / dpi) * MILLIMETERS_PER_INCH);
}

interface Size {
  /** Width in pixels. */
  width: number;
  /** Height in pixels. */
  height: number;
}

/**
 * Follows the size of a screen, to find out when the DPI must be set. If a VNC client changes the size, QEMU forgets the DPI, and the DPI
 * must be set again. Firmware and boot menus change the size too. If the DPI were set at such a size, the guest would keep that size. So
 * after a boot, the DPI is set only when the screen has reached the wanted size or the size from before the boot.
 */
export class FollowedSize {
  readonly #wanted: Size;
  #last: Size;
  #isReached = false;

  constructor(wanted: Size) {
    this.#wanted = wanted;
    this.#last = wanted;
  }

  /**
   * Records the screen size of a guest that the agent started before its own restart. Returns whether the DPI must be set for this size. If
   * the size is not the wanted size, a client or a boot menu might have chosen it. So the DPI is set only after the next change of the
   * size.
   */
  adopt(size: Size): boolean {
    if (isPossible(size)) {
      this.#last = size;
      this.#isReached = true;
    }
    return isSame(size, this.#wanted);
  }

  /** Records that the guest boots again. */
  boots(): void {
    this.#isReached = false;
  }

  /** Returns whether the DPI must be set. `size` is the present size of the screen. */
  counts(size: Size): boolean {
    this.#isReached ||= isSame(size, this.#wanted) || isSame(size, this.#last);
    if (!this.#isReached || !isPossible(size)) {
      return false;
    }
    this.#last = size;
    return true;
  }
}

function isSame(one: Size, other: Size): boolean {
  return one.width === other.width && one.height === other.height;
}

/**
 * Returns whether a graphical screen can have this size. A text screen has at most 400 lines of pixels, so the result is false for its size.
 */
function isPossible({ width, height }: Size): boolean {
  const { displayWidth, displayHeight } = VM_FIELDS;
  return (
    displayWidth.minimum <= width && width <= LARGEST && displayHeight.minimum <= height && height <= LARGEST
  );
}
