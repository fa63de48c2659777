/** Reads the values of a machine that are only in its folder if the agent's record of the machine is lost. */
import type { Logger } from 'pino';
import type { FoundMachine, MachineFolder } from '../driver.ts';
import { readMachineFile } from './state.ts';

export async function find(folder: MachineFolder, logger: Logger): Promise<FoundMachine> {
  try {
    const state = await readMachineFile(folder.path);
    return { ...folder, runAs: state?.launched?.runAs, base: state?.base?.path };
  } catch (error) {
    // The error is only logged here, because every later step of this machine reports it again.
    logger.error({ err: error, uid: folder.uid }, 'The state of a machine cannot be read');
    return { ...folder, runAs: undefined, base: undefined };
  }
}
