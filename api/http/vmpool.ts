/** Claims of VMs from VMPools in the HTTP API. */
import * as z from 'zod';
import { DEPLOY_MINUTES_MAXIMUM } from '../v1alpha1/fields.ts';
import { timestamp } from '../v1alpha1/schema.ts';
import { whole } from './request.ts';
import { deployedVMSchema } from './vm.ts';

export const vmClaimQuery = z.object({
  whenEmpty: z.enum(['deploy', 'wait', 'fail']).default('deploy').meta({
    description:
      'Behaviour when no VM of the pool is ready. deploy (the default): a new VM of the same template is deployed. wait: the request waits for a ready VM. fail: the server answers 503.',
  }),
});
export type VMClaimQuery = z.infer<typeof vmClaimQuery>;

export const vmClaimBody = z.object({
  timeout: whole(1, DEPLOY_MINUTES_MAXIMUM)
    .optional()
    .meta({ description: 'Minutes to wait until a VM runs. 10 when omitted.' }),
  aliveUntil: timestamp(
    'Time after which the operator deletes the claimed VM. Move it later in time while you need the VM.',
  ).optional(),
});

export const claimedVMSchema = deployedVMSchema
  .extend({
    cold: z.boolean().meta({ description: 'Whether the pool was empty, and the VM is new and had to boot.' }),
  })
  .meta({
    id: 'ClaimedVM',
    description: 'The VM that was claimed, with the address and the ports of its guest.',
  });
export type ClaimedVM = z.infer<typeof claimedVMSchema>;
