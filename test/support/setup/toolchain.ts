/**
 * Set-up of projects whose tests start clusters. The tools are made before the tests' time limits begin, because that takes
 * minutes on a new machine.
 */
import { resolveTools } from '../../../hack/cluster/toolchain/toolchain.ts';

export async function setup(): Promise<void> {
  await resolveTools();
}
