/** Deletes the kernel's tracked connections of machines. */
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { forgetConnections } from '../commands.ts';

export interface Owner {
  address: string;
  ports: readonly MachinePort[];
}

/**
 * Deletes the kernel's tracked connections from and to `address`. They can belong to a machine that had this address before. Also deletes
 * the tracked UDP connections to the reserved host ports in `ports`. Otherwise the kernel would apply earlier rules to such a UDP
 * connection as long as its sender continues to send.
 *
 * @param hostAddress address at which reserved ports are reached; undefined means every address.
 */
export async function forgetFormer(
  { address, ports }: Owner,
  hostAddress: string | undefined,
): Promise<void> {
  const onHost = hostAddress === undefined ? [] : ['--orig-dst', hostAddress];
  // The filter --orig-src finds connections from the machine. The filter --reply-src finds connections to the machine, because the replies
  // come from the machine's address, even through a forwarded port. No connection matches both filters, so the two deletions can run at the
  // same time.
  await Promise.all(['--orig-src', '--reply-src'].map((flag) => forgetConnections([flag, address])));
  for (const port of ports.filter(({ protocol }) => protocol === 'UDP')) {
    await forgetConnections(['--proto', 'udp', '--orig-port-dst', String(port.hostPort), ...onHost]);
  }
}
