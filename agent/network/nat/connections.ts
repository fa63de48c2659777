/** Deletes the kernel's tracked connections of machines. */
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { forgetConnections } from '../commands.ts';

export interface Owner {
  address: string;
  ports: readonly MachinePort[];
}

/**
 * Deletes the kernel's tracked connections of machines that had the address before. Also deletes tracked UDP connections to the reserved
 * ports. If such a connection is older than the rule for its port, the rule does not apply to it while the sender continues to send.
 *
 * @param hostAddress address at which reserved ports are reached; undefined means every address.
 */
export async function forgetFormer(
  { address, ports }: Owner,
  hostAddress: string | undefined,
): Promise<void> {
  const onHost = hostAddress === undefined ? [] : ['--orig-dst', hostAddress];
  // The filter --orig-src finds connections from the machine. The filter --reply-src finds connections to the machine, because their
  // replies come from the machine's address, even if a port was forwarded. No entry matches both filters, so the two deletions can run at
  // the same time.
  await Promise.all(['--orig-src', '--reply-src'].map((flag) => forgetConnections([flag, address])));
  for (const port of ports.filter(({ protocol }) => protocol === 'UDP')) {
    await forgetConnections(['--proto', 'udp', '--orig-port-dst', String(port.hostPort), ...onHost]);
  }
}
