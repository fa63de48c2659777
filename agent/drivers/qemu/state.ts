import { rm } from 'node:fs/promises';
import { Serial } from '../../../base/serial.ts';
import { type MachineFile, readMachineFile, writeMachineFile } from '../../machines/folder.ts';

/** Fields to set; undefined removes one. */
export type StateChange = { [Key in keyof MachineFile]?: MachineFile[Key] | undefined };

/** A machine's state file, changed by one at a time: steps asked for and events of the process meet here. */
export class StateFile {
  readonly #folder: string;
  readonly #serial = new Serial();

  constructor(folder: string) {
    this.#folder = folder;
  }

  async read(): Promise<MachineFile | undefined> {
    return await readMachineFile(this.#folder);
  }

  async replace(state: MachineFile): Promise<void> {
    await this.#serial.run(async () => await writeMachineFile(this.#folder, state));
  }

  async update(change: StateChange): Promise<MachineFile> {
    return await this.change(() => change);
  }

  /** Writes what `decide` makes of the present state; nothing when it wants no change. */
  async change(decide: (state: MachineFile) => StateChange): Promise<MachineFile> {
    return await this.#serial.run(async () => {
      const state = await readMachineFile(this.#folder);
      if (state === undefined) {
        throw new Error(`${this.#folder} has no state file`);
      }
      const change = decide(state);
      const next = { ...state, ...change } as MachineFile;
      if (Object.keys(change).length > 0) {
        await writeMachineFile(this.#folder, next);
      }
      return next;
    });
  }

  /** Removes the folder, when nobody writes to it. */
  async removeFolder(): Promise<void> {
    await this.#serial.run(async () => await rm(this.#folder, { recursive: true, force: true }));
  }
}
