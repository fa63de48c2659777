/** Set-up of projects whose tests render the chart. */
import { resolveChartTools } from '../../../hack/cluster/toolchain/toolchain.ts';

export async function setup(): Promise<void> {
  await resolveChartTools();
}
