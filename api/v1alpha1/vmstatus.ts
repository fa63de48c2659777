/** What the operator reports of a VM. */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import { IMAGE_NAME_LENGTH } from './reference.ts';
import { count, report, timestamp } from './schema.ts';

/** Endpoints of one machine: its reservations and the agent's own (SSH, VNC, screen). */
const MAXIMUM_ENDPOINTS = 80;

const endpointSchema = z.object({
  name: report('ssh, vnc, screen, or PORT-tcp and PORT-udp for a reservation.', 63),
  protocol: report('TCP or UDP.', 8),
  hostPort: count('Port of the host.', 65_535),
  guestPort: count('Port in the guest.', 65_535),
});

export const vmStatusSchema = z
  .object({
    ...commonStatus(),
    phase: report(
      'For people: Pending, Scheduled, Pulling, Cloning, Starting, Running, Stopping, Stopped, Suspending, Suspended, Resuming, Failed or Terminating. Programs read the conditions.',
      64,
    ).optional(),
    nodeName: report('Host that the machine is on.', 253).optional(),
    hostAddress: report('Address of that host, where reserved ports answer.', 253).optional(),
    addresses: z
      .array(report('An IP address.', 64))
      .max(16)
      .meta({ description: 'Addresses of the guest.', 'x-kubernetes-list-type': 'atomic' })
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
    hardwareUUID: report('UUID that the guest sees.', 64).optional(),
    serialNumber: report('Serial number that the guest sees.', 64).optional(),
    image: z
      .object({
        reference: report('Reference or name, as resolved.', IMAGE_NAME_LENGTH).optional(),
        digest: report('Digest of what was really deployed.', 256).optional(),
      })
      .meta({ description: 'The image or ISO that the machine was made from.' })
      .optional(),
    config: z
      .object({
        name: report('Name of the VMConfig.', 253),
        namespace: report('Namespace of the VMConfig.', 63).optional(),
        generation: count('Its generation when it was read.', Number.MAX_SAFE_INTEGER),
      })
      .meta({ description: 'The VMConfig that this VM was resolved with.' })
      .optional(),
    resources: z
      .object({
        cpu: count('Number of virtual processors.').optional(),
        memory: report('Memory, as a quantity.', 32).optional(),
        diskSize: report('Size of the disk, as a quantity.', 32).optional(),
      })
      .meta({ description: 'Size of the machine, as resolved.' })
      .optional(),
    firstRunningTime: timestamp(
      'When the machine first ran; written once. From then on it is never made again.',
    ).optional(),
    startTime: timestamp('When the machine last started.').optional(),
    attempt: count(
      'Which placement this is: 1 for the first; one more each time it had to be placed again before it first ran.',
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
        reason: report('One word for machines.', 1024),
        message: report('What happened, with the hypervisor’s last words.', 32_768),
        time: timestamp('When it was recorded.'),
      })
      .meta({ description: 'Why the VM ended for good; written once.' })
      .optional(),
    progressPercent: count('Per cent of the pull or clone that is done.', 100).optional(),
    restartedAt: timestamp('The restartRequestedAt that was last fulfilled.').optional(),
    revertedAt: timestamp('The revertRequestedAt that was last fulfilled.').optional(),
  })
  .meta({ description: 'What was last seen of the machine; written by the operator.' });
export type VMStatus = z.infer<typeof vmStatusSchema>;
