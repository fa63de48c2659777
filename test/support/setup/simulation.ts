/** Set-up of projects whose tests simulate hosts. */
import { resolveSimulationTools } from '../../../hack/cluster/toolchain/toolchain.ts';

export async function setup(): Promise<void> {
  await resolveSimulationTools();
}
