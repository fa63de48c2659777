/** Claims of VMs from the VMPools of a namespace. */
import type { ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import { claimVM, untilUsable } from '../actions/claim.ts';
import { deployedVM } from '../api/http/vmitem.ts';
import {
  type ClaimedVM,
  claimedVMSchema,
  vmClaimBody,
  type VMClaimQuery,
  vmClaimQuery,
} from '../api/http/vmpool.ts';
import { timeoutMinutes } from '../api/http/vmspec.ts';
import { VM_POOLS } from '../api/v1alpha1/resources.ts';
import type { Caller } from './callers/caller.ts';
import { checked, type NamespacedRef } from './callers/objects.ts';
import type { App } from './http/app.ts';
import { StatusError } from './http/errors.ts';
import { objectParams } from './http/namespaces.ts';
import { SAMPLE } from './http/samples.ts';
import { WaitEnd } from './http/waiting.ts';
import { inNamespace, MEMBERS } from './own/rights.ts';
import type { Services } from './services.ts';
import { answerOf, keepOrDiscard, trimmed } from './vms/deploy.ts';

export function addVMPoolRoutes(app: App, services: Services): void {
  app.post(
    '/api/v1/namespaces/:namespace/vmpools/:name/claim',
    {
      config: { right: inNamespace({ verb: 'patch', resource: 'vms' }) },
      schema: {
        summary: 'Claim a VM of a pool',
        description:
          'The VM then belongs to the caller, and never returns to the pool. The answer comes when the VM runs. If no VM is ready, `whenEmpty` says what happens, and `cold` tells whether the VM had to boot. A VM that was claimed and does not run within the timeout is deleted.',
        roles: MEMBERS,
        sample: { timeout: 10 },
        tags: ['VMs'],
        params: objectParams('pool', SAMPLE.pool),
        querystring: vmClaimQuery,
        body: vmClaimBody,
        response: { 200: claimedVMSchema },
      },
    },
    async ({ fullCaller, params, query, body, log }, reply) =>
      await claim(services, reply.raw, {
        caller: fullCaller(),
        pool: checked(VM_POOLS, params),
        whenEmpty: query.whenEmpty,
        minutes: timeoutMinutes(body),
        aliveUntil: body.aliveUntil,
        logger: log as unknown as Logger,
      }),
  );
}

interface ClaimCall {
  readonly caller: Caller;
  readonly pool: NamespacedRef;
  readonly whenEmpty: VMClaimQuery['whenEmpty'];
  /** Time limit of the request in minutes. */
  readonly minutes: number;
  /** Time after which the operator deletes the claimed VM. */
  readonly aliveUntil: string | undefined;
  readonly logger: Logger;
}

/** Claims a VM and resolves when it runs. If it does not, the VM is deleted, because the caller does not learn its name. */
async function claim(
  { waiting, own }: Services,
  response: ServerResponse,
  call: ClaimCall,
): Promise<ClaimedVM> {
  const { caller, pool, minutes } = call;
  const username = await caller.client.username();
  return await waiting.run(response, { user: username, namespace: pool.namespace }, async (end) => {
    const timer = setTimeout(() => end.abort(new WaitEnd('late')), minutes * 60_000);
    try {
      const request = { ...call, ...pool, pool: pool.name, signal: end.signal };
      const { members, attempts } = own.watches;
      const claimed = await claimVM({ ...caller, username, members, attempts }, request);
      return await usable({ ...call, signal: end.signal }, claimed);
    } catch (error) {
      throw error instanceof WaitEnd ? tooLate(error, call) : error;
    } finally {
      clearTimeout(timer);
    }
  });
}

async function usable(
  { caller, minutes, aliveUntil, logger, signal }: ClaimCall & { readonly signal: AbortSignal },
  claimed: Awaited<ReturnType<typeof claimVM>>,
): Promise<ClaimedVM> {
  const latest = { vm: claimed.vm };
  try {
    const waits = { ...caller, waitFor: 'ready', aliveUntil, signal, trim: trimmed } as const;
    return { ...deployedVM(await untilUsable(latest, claimed, waits)), cold: claimed.isCold };
  } catch (error) {
    const isDeleted = await keepOrDiscard(caller.client, latest.vm, { error, stays: false, logger });
    throw answerOf(error, latest.vm, { isDeleted, minutes });
  }
}

/** Returns the error for a caller who has waited for a ready VM. */
function tooLate({ why }: WaitEnd, { pool, minutes }: ClaimCall): StatusError {
  return why === 'late'
    ? new StatusError(504, `No VM of pool ${pool.name} was ready within ${minutes} minutes`)
    : new StatusError(503, 'The HTTP API is stopping. Try again');
}
