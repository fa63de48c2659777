/** Set-up of the project `installed`: what makes nodes, and the images that they run. */
import { buildImages } from '../../../hack/images.ts';
import { whyNoNodes } from '../../cluster/nodes/requirements.ts';
import { resolveNodeTools } from '../../cluster/toolchain/toolchain.ts';

export async function setup(): Promise<void> {
  if (whyNoNodes() !== undefined) return;
  await resolveNodeTools();
  await buildImages({ progress: (text) => process.stderr.write(`images: ${text}\n`) });
}
