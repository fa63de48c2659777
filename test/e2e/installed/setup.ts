/** Set-up of the project `installed`: the images of Berth, and everything that nodes need. */
import type { TestProject } from 'vitest/node';
import { buildImages } from '../../../hack/images.ts';
import { whyNoNodes } from '../../../hack/cluster/nodes/requirements.ts';
import { resolveNodeTools } from '../../../hack/cluster/toolchain/toolchain.ts';

declare module 'vitest' {
  export interface ProvidedContext {
    /** Paths of the archives of operator and agent. */
    archives: string[];
  }
}

export async function setup(project: TestProject): Promise<void> {
  if (whyNoNodes() !== undefined) {
    return;
  }
  await resolveNodeTools();
  const built = await buildImages({ progress: (text) => process.stderr.write(`images: ${text}\n`) });
  project.provide('archives', [built.operator.archive, built.agent.archive]);
}
