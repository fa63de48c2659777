/** Status of a VM, which the operator reports. */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import { GUEST_ADDRESSES_LIMIT, GUEST_HOST_NAME_LENGTH, GUEST_OS_LENGTH } from './machine.ts';
import { VM_PHASES } from './phases.ts';
import { IMAGE_NAME_LENGTH } from './reference.ts';
import { count, report, timestamp } from './schema.ts';

/** Largest number of endpoints of one machine. It is enough for 64 reserved ports and the ports for SSH, VNC and screen sharing. */
const MAXIMUM_ENDPOINTS = 80;

const endpointSchema = z.object({
  name: report(
    'Name of the endpoint: ssh, screen or vnc. The name of any other endpoint is PORT-tcp or PORT-udp.',
    63,
  ),
  purpose: report('Service behind the port, if it is known: ssh, screen or vnc.', 63).optional(),
  protocol: report('TCP or UDP.', 8),
  hostPort: count('Port of the host.', 65_535),
  guestPort: count(
    'Port in the guest. Absent for vnc, because the host serves the screen.',
    65_535,
  ).optional(),
});

export const vmStatusSchema = z
  .object({
    ...commonStatus(),
    phase: report(
      `Phase of the VM: one of ${Object.keys(VM_PHASES).join(', ')}. It is for people. Programs read the conditions instead.`,
      64,
    ).optional(),
    nodeName: report('Host of the machine.', 253).optional(),
    hostAddress: report(
      'Address of the host, at which clients reach the ports of the machine.',
      253,
    ).optional(),
    addresses: z
      .array(report('An IP address.', 64))
      .max(GUEST_ADDRESSES_LIMIT)
      .meta({
        description:
          'Addresses of the guest, if the guest has its own addresses. The first one is the address in the network of the host. After it come the addresses that the guest agent reports. With the network driver `user`, the address of the guest exists only inside the hypervisor, and the host cannot reach it.',
        'x-kubernetes-list-type': 'atomic',
      })
      .optional(),
    guest: z
      .object({
        os: report('Name of the operating system.', GUEST_OS_LENGTH).optional(),
        hostName: report('Host name.', GUEST_HOST_NAME_LENGTH).optional(),
      })
      .meta({
        description:
          'Facts that the guest agent reports. They can be wrong, because Berth cannot check them.',
      })
      .optional(),
    endpoints: z
      .array(endpointSchema)
      .max(MAXIMUM_ENDPOINTS)
      .meta({
        description: 'Ports of the host at which clients reach the machine.',
        'x-kubernetes-list-type': 'map',
        'x-kubernetes-list-map-keys': ['name'],
      })
      .optional(),
    hardwareUUID: report(
      'Hardware UUID in the guest. A guest that started from the memory of its image has it after its next boot. Absent on Apple hosts, where it follows from the image.',
      64,
    ).optional(),
    serialNumber: report(
      'Serial number in the guest. A guest that started from the memory of its image has it after its next boot. Absent on Apple hosts, where it follows from the image.',
      64,
    ).optional(),
    image: z
      .object({
        name: report(
          'Name of the Image or ISO. For an image from a registry, this is the reference without registry and digest.',
          IMAGE_NAME_LENGTH,
        ).optional(),
        reference: report(
          'Complete reference of the image in a registry, or name of the Image or ISO.',
          IMAGE_NAME_LENGTH,
        ).optional(),
        digest: report('Digest of the image that was deployed.', 256).optional(),
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
      .meta({ description: 'Size of the machine after all defaults are applied.' })
      .optional(),
    firstRunningTime: timestamp(
      'Time when the machine first ran. This time never changes. After the first run, the operator never creates the machine again.',
    ).optional(),
    startTime: timestamp('Time of the last start of the machine.').optional(),
    attempt: count(
      'Number of the present attempt to place the VM on a host. It starts at 1, and grows only before the first run of the VM.',
    ).optional(),
    avoidedNodes: z
      .array(report('Name of a Node.', 253))
      .max(16)
      .meta({
        description: 'Hosts on which an earlier attempt to start the VM failed.',
        'x-kubernetes-list-type': 'set',
      })
      .optional(),
    failure: z
      .object({
        reason: report('Reason of the failure, as one word that programs can read.', 1024),
        message: report('Description of the failure, with the last output of the hypervisor.', 32_768),
        time: timestamp('Time when the operator recorded the failure.'),
      })
      .meta({ description: 'Reason why the VM failed. This field never changes.' })
      .optional(),
    accelerator: report('Accelerator of the machine: KVM, HVF, or TCG for emulation.', 64).optional(),
    progress: report(
      'Present work of the host, as text for people, for example `Pulling 42 % (80 MB/s)`.',
      64,
    ).optional(),
    progressPercent: count('Progress of the pull or clone in percent.', 100).optional(),
    restartedAt: timestamp('Last value of restartRequestedAt that the host has handled.').optional(),
    revertedAt: timestamp('Last value of revertRequestedAt that the host has handled.').optional(),
  })
  .meta({ description: 'Last observed state of the VM, written by the operator.' });
export type VMStatus = z.infer<typeof vmStatusSchema>;
