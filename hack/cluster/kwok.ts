import { join } from 'node:path';
import { isMissing } from '../../base/errors.ts';
import { isAlive, readRecord, startProcess } from './processes.ts';
import { resolveSimulationTools } from './toolchain/toolchain.ts';

/** Starts KWOK for this cluster if it does not run yet. KWOK manages only nodes with its annotation. */
export async function ensureKwok(directory: string): Promise<void> {
  if (await runs(directory)) {
    return;
  }
  const { kwok } = await resolveSimulationTools();
  await startProcess(directory, {
    name: 'kwok',
    file: kwok,
    arguments: [
      `--kubeconfig=${join(directory, 'kwok.kubeconfig')}`,
      `--config=${join(import.meta.dirname, 'kwok-stages.yaml')}`,
    ],
  });
}

async function runs(directory: string): Promise<boolean> {
  try {
    return await isAlive(readRecord(directory, 'kwok'));
  } catch (error) {
    if (isMissing(error)) {
      return false;
    }
    throw error;
  }
}
