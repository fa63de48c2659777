/** Reads a machine's values from its state file. If the agent's record of the machine is lost, only this file has these values. */
import type { Logger } from 'pino';
import type { FoundMachine, MachineFolder } from '../driver.ts';
import { readMachineFile } from './state.ts';

export async function find(folder: MachineFolder, logger: Logger): Promise<FoundMachine> {
  try {
    const state = await readMachineFile(folder.path);
    return { ...folder, runAs: state?.launched?.runAs, base: state?.base?.path };
  } catch (error) {
    // The error is only logged, because every later step of this machine reports the same error again.
    logger.error({ err: error, uid: folder.uid }, 'The state of a machine cannot be read');
    return { ...folder, runAs: undefined, base: undefined };
  }
}
