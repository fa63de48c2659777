/** Deletes the kernel's tracked connections of machines. */
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { forgetConnections } from '../commands.ts';

export interface Owner {
  address: string;
  ports: readonly MachinePort[];
}

/**
 * Deletes the kernel's tracked connections of machines that had the address before. Also deletes tracked UDP connections to the reserved
 * ports. Such a connection can be older than the rule for its port. The rule would then not apply as long as the sender continues to send.
 *
 * @param hostAddress address at which reserved ports are reached; undefined means every address.
 */
export async function forgetFormer(
  { address, ports }: Owner,
  hostAddress: string | undefined,
): Promise<void> {
  const onHost = hostAddress === undefined ? [] : ['--orig-dst', hostAddress];
  // One filter finds connections from the machine. The other filter finds connections to the machine by their replies. The replies come
  // from the machine's address, even if a port was forwarded. No entry matches both filters, so the deletions do not disturb each other.
  await Promise.all(['--orig-src', '--reply-src'].map((flag) => forgetConnections([flag, address])));
  for (const port of ports.filter(({ protocol }) => protocol === 'UDP')) {
    await forgetConnections(['--proto', 'udp', '--orig-port-dst', String(port.hostPort), ...onHost]);
  }
}
