/** Set-up of projects whose tests start metrics-server. */
import { resolveMetricsTools } from '../../../hack/cluster/toolchain/toolchain.ts';

export async function setup(): Promise<void> {
  await resolveMetricsTools();
}
