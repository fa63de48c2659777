/** VMs as the HTTP API shows them. */
import * as z from 'zod';

/** VM in a list. An unknown port is absent and never 0, because clients would take 0 for a port. */
export const vmItemSchema = z
  .object({
    name: z.string(),
    node: z.string().optional(),
    /** Address of the host. NAT forwards ports of the host to the guest, so clients need no address of the guest. */
    ip: z.string().optional(),
    cpu: z.int().optional(),
    memory: z.string().optional().meta({ description: 'Memory with two decimals, for example 4.80Gi.' }),
    image: z.string().optional(),
    gpuPassthrough: z.boolean(),
    deployDate: z.string().optional().meta({ description: 'RFC 3339 time at which the VM was created.' }),
    ssh: z.int().optional().meta({ description: 'Host port for SSH.' }),
    vnc: z.int().optional().meta({ description: 'Host port for VNC.' }),
    screenshare: z.int().optional().meta({ description: 'Host port for screen sharing.' }),
    status: z.enum(['Pending', 'Running', 'Failed', 'Stopped', 'Suspended', 'Terminating']),
    reservedPorts: z
      .string()
      .optional()
      .meta({ description: 'Reserved ports as HOST:GUEST/PROTOCOL, for example 8080:80/tcp.' }),
    powerState: z.string().optional(),
    owner: z.string().optional().meta({ description: 'User who made the VM.' }),
    architecture: z.string().optional(),
    labels: z.record(z.string(), z.string()).optional(),
    message: z.string().optional(),
  })
  .meta({ id: 'VM' });
export type VMItem = z.infer<typeof vmItemSchema>;

export const vmListSchema = z.object({ items: z.array(vmItemSchema), continue: z.string().optional() });
