/** Set-up of projects whose tests render the chart. */
import { resolveChartTools } from '../../cluster/toolchain/toolchain.ts';

export async function setup(): Promise<void> {
  await resolveChartTools();
}
