/** Deletes the kernel's tracked connections of machines. */
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { forgetConnections } from '../commands.ts';

export interface Owner {
  address: string;
  ports: readonly MachinePort[];
}

/**
 * Deletes the kernel's tracked connections of machines that had the address before. Also deletes tracked UDP connections to the reserved
 * ports. Such a connection may be older than the rule of its port, and the rule would not apply while the sender continues.
 *
 * @param hostAddress address at which reserved ports are reached; undefined means every address.
 */
export async function forgetFormer(
  { address, ports }: Owner,
  hostAddress: string | undefined,
): Promise<void> {
  const onHost = hostAddress === undefined ? [] : ['--orig-dst', hostAddress];
  // The replies of a connection to the machine come from its address, whether its port was forwarded or not. No entry matches both
  // filters, so that these deletions do not disturb each other.
  await Promise.all(['--orig-src', '--reply-src'].map((flag) => forgetConnections([flag, address])));
  for (const port of ports.filter(({ protocol }) => protocol === 'UDP')) {
    await forgetConnections(['--proto', 'udp', '--orig-port-dst', String(port.hostPort), ...onHost]);
  }
}
