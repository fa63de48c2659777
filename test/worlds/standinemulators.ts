/**
 * A stand-in for the driver of emulators. Its emulators have a folder and a scripted ADB, but no process. A test decides when Android of an
 * emulator has booted.
 */
import type { EmulatorOffer, ExitReason, LaunchPlan, MachineFolder } from '../../agent/drivers/driver.ts';
import type { DriverOfEmulators } from '../../agent/drivers/hostdrivers.ts';
import { AdbDevice } from '../wires/adbdevice.ts';
import { StandInDriver } from './standin.ts';

/** Port at which ADB answers on the address of the emulator's namespace. */
const ADB_PORT = 5555;

export class StandInEmulators extends StandInDriver implements DriverOfEmulators {
  override readonly name = 'emulator';
  /** Answer of {@link offer}. A test can change it while agents run. */
  offered: EmulatorOffer = { kind: 'offered', systemImages: ['android-36.google_apis'] };
  /** Error that each creation throws while it is set. */
  createError: Error | undefined;
  /** Whether Android of a new emulator boots at once. */
  bootsAtOnce = false;
  readonly #devices = new Map<string, AdbDevice>();

  async offer(): Promise<EmulatorOffer> {
    return this.offered;
  }

  override async create(...call: Parameters<StandInDriver['create']>): Promise<void> {
    if (this.createError !== undefined) {
      throw this.createError;
    }
    await super.create(...call);
  }

  override async start(folder: MachineFolder, plan: LaunchPlan): Promise<void> {
    await super.start(folder, plan);
    if (plan.network.kind === 'namespace' && !this.#devices.has(folder.uid)) {
      const device = await AdbDevice.listen(plan.network.address, ADB_PORT);
      device.booted = this.bootsAtOnce;
      this.#devices.set(folder.uid, device);
    }
  }

  override async stop(
    folder: MachineFolder,
    o: { graceMilliseconds: number; hurry?: AbortSignal },
  ): Promise<void> {
    await super.stop(folder, o);
    await this.#hangUp(folder.uid);
  }

  async discard(folder: MachineFolder): Promise<void> {
    this.calls.push(`discard ${folder.uid}`);
  }

  override async delete(folder: MachineFolder): Promise<void> {
    await super.delete(folder);
    await this.#hangUp(folder.uid);
  }

  override end(uid: string, reason: ExitReason, message: string): void {
    void this.#hangUp(uid);
    super.end(uid, reason, message);
  }

  /** Returns ADB of a running emulator. @throws Error when the emulator does not run. */
  device(uid: string): AdbDevice {
    const device = this.#devices.get(uid);
    if (device === undefined) {
      throw new Error(`emulator ${uid} does not run`);
    }
    return device;
  }

  async #hangUp(uid: string): Promise<void> {
    const device = this.#devices.get(uid);
    this.#devices.delete(uid);
    await device?.close();
  }
}
