/** Set-up of projects whose tests start clusters: what takes minutes on a fresh machine is made before their deadlines begin. */
import { resolveTools } from '../../../hack/cluster/toolchain/toolchain.ts';

export async function setup(): Promise<void> {
  await resolveTools();
}
