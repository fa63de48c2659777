import { type ProcessPlan, type ProcessRecord, startProcess } from './processes.ts';

/** Starts a program according to its plan, as a plain process or in a container. The container's process is recorded in the same way. */
export async function launch(directory: string, plan: ProcessPlan): Promise<ProcessRecord> {
  const { image } = plan;
  if (image === undefined) {
    return await startProcess(directory, plan);
  }
  // This import is dynamic, because callers without containers should not load the code that starts them.
  const { startContainer } = await import('./providers/docker.ts');
  return await startContainer(directory, { ...plan, image });
}
