/** Status of a VM, which the operator reports. */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import { GUEST_ADDRESSES_LIMIT, GUEST_HOST_NAME_LENGTH, GUEST_OS_LENGTH } from './machine.ts';
import { VM_PHASES } from './phases.ts';
import { IMAGE_NAME_LENGTH } from './reference.ts';
import { count, report, timestamp } from './schema.ts';

/** Largest number of endpoints of one machine: its reserved ports, and those for SSH, VNC and screen. */
const MAXIMUM_ENDPOINTS = 80;

const endpointSchema = z.object({
  name: report('Name of the endpoint: ssh, screen, vnc, or for another port PORT-tcp or PORT-udp.', 63),
  purpose: report('Service behind the port, if it is known: ssh, screen or vnc.', 63).optional(),
  protocol: report('TCP or UDP.', 8),
  hostPort: count('Port of the host.', 65_535),
  guestPort: count('Port in the guest. Absent for vnc, which the host serves.', 65_535).optional(),
});

export const vmStatusSchema = z
  .object({
    ...commonStatus(),
    phase: report(
      `For people. Programs read the conditions. One of ${Object.keys(VM_PHASES).join(', ')}.`,
      64,
    ).optional(),
    nodeName: report('Host of the machine.', 253).optional(),
    hostAddress: report('Address of the host, for ports of the machine.', 253).optional(),
    addresses: z
      .array(report('An IP address.', 64))
      .max(GUEST_ADDRESSES_LIMIT)
      .meta({
        description:
          'Addresses of the guest, if it has addresses of its own. The address from the network of the host comes first, then the addresses that the guest agent reports. With the network driver `user`, the guest has its address inside its hypervisor, and the host cannot reach that address.',
        'x-kubernetes-list-type': 'atomic',
      })
      .optional(),
    guest: z
      .object({
        os: report('Name of the operating system.', GUEST_OS_LENGTH).optional(),
        hostName: report('Host name.', GUEST_HOST_NAME_LENGTH).optional(),
      })
      .meta({ description: 'Facts that the guest agent reports. They are only as right as the guest.' })
      .optional(),
    endpoints: z
      .array(endpointSchema)
      .max(MAXIMUM_ENDPOINTS)
      .meta({
        description: 'Where the machine can be reached on its host.',
        'x-kubernetes-list-type': 'map',
        'x-kubernetes-list-map-keys': ['name'],
      })
      .optional(),
    hardwareUUID: report('Hardware UUID in the guest.', 64).optional(),
    serialNumber: report('Serial number in the guest.', 64).optional(),
    image: z
      .object({
        name: report(
          'Short name: of the Image or ISO, or a reference without registry and digest.',
          IMAGE_NAME_LENGTH,
        ).optional(),
        reference: report('Resolved reference or name.', IMAGE_NAME_LENGTH).optional(),
        digest: report('Digest of the deployed content.', 256).optional(),
      })
      .meta({ description: 'Image or ISO from which the machine was made.' })
      .optional(),
    config: z
      .object({
        name: report('Name of the VMConfig.', 253),
        namespace: report('Namespace of the VMConfig.', 63).optional(),
        generation: count('Generation of the VMConfig when it was read.', Number.MAX_SAFE_INTEGER),
      })
      .meta({ description: 'VMConfig from which this VM took values.' })
      .optional(),
    resources: z
      .object({
        cpu: count('Number of virtual processors.').optional(),
        memory: report('Memory, as a quantity.', 32).optional(),
        diskSize: report('Size of the disk, as a quantity.', 32).optional(),
      })
      .meta({ description: 'Resolved size of the machine.' })
      .optional(),
    firstRunningTime: timestamp(
      'Time of the first run, written once. The VM is never recreated afterwards.',
    ).optional(),
    startTime: timestamp('Time of the last start of the machine.').optional(),
    attempt: count(
      'Number of the placement. It starts at 1 and grows when the VM is placed again before its first run.',
    ).optional(),
    avoidedNodes: z
      .array(report('Name of a Node.', 253))
      .max(16)
      .meta({
        description: 'Hosts on which an earlier placement could not start.',
        'x-kubernetes-list-type': 'set',
      })
      .optional(),
    failure: z
      .object({
        reason: report('One word for programs.', 1024),
        message: report('Description of the failure, with the last words of the hypervisor.', 32_768),
        time: timestamp('Time of the record.'),
      })
      .meta({ description: 'Reason for the end of the VM, written once.' })
      .optional(),
    accelerator: report('Accelerator of the machine: KVM, HVF, or TCG for emulation.', 64).optional(),
    progress: report(
      'For people: the work of the host, for example `Pulling 42 % (80 MB/s)`.',
      64,
    ).optional(),
    progressPercent: count('Progress of the pull or clone in percent.', 100).optional(),
    restartedAt: timestamp('Value of restartRequestedAt that was last fulfilled.').optional(),
    revertedAt: timestamp('Value of revertRequestedAt that was last fulfilled.').optional(),
  })
  .meta({ description: 'Last observed state of the VM, written by the operator.' });
export type VMStatus = z.infer<typeof vmStatusSchema>;
