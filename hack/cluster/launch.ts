import { type ProcessPlan, type ProcessRecord, startProcess } from './processes.ts';

/** Starts a program as its plan says: as a plain process, or in a container, whose process is recorded just the same. */
export async function launch(directory: string, plan: ProcessPlan): Promise<ProcessRecord> {
  const { image } = plan;
  if (image === undefined) {
    return await startProcess(directory, plan);
  }
  // Whoever needs no container need not load what starts them.
  const { startContainer } = await import('./providers/docker.ts');
  return await startContainer(directory, { ...plan, image });
}
