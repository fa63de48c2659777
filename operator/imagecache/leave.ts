/** A host that keeps the image for an entry which does not want it there any more. */
import type { NodeCacheState } from '../../api/v1alpha1/imagecacheentry.ts';
import { type Decision, type HostContext, obstacle } from './decision.ts';
import { type CacheJob, iso } from './observed.ts';
import { failedRow, judge, type Result, type Verdict } from './attempt.ts';

export function leave(context: HostContext): Decision {
  const { jobs, isHeld } = context;
  const caching = jobs.filter(({ type }) => type === 'cache');
  const job = jobs.find(({ type }) => type === 'uncache');
  if (!isHeld) {
    const isOver = job !== undefined && (job.outcome.kind === 'succeeded' || job.outcome.kind === 'failed');
    return { row: undefined, isHeld: false, deletes: isOver ? [...caching, job] : caching };
  }
  const row = context.row?.state === 'Removing' ? context.row : undefined;
  const decision = step({ ...context, row }, job);
  return { ...decision, deletes: [...decision.deletes, ...caching] };
}

function step(context: HostContext, job: CacheJob | undefined): Decision {
  const { row, observed } = context;
  const jobs = job === undefined ? [] : [job];
  if (row === undefined) {
    return { ...queued(context), deletes: jobs };
  }
  const verdict = judge(job, row, observed);
  switch (verdict.kind) {
    case 'underWay':
      return underWay(context, row, verdict);
    case 'succeeded':
      return { row: undefined, isHeld: false, deletes: jobs, ended: ended(verdict.kind) };
    case 'failed': {
      const next = failedRow(row, 'Removing', verdict.message, observed);
      const wakeAt = Date.parse(next.retryAt ?? '');
      return { row: next, isHeld: true, deletes: jobs, ended: ended(verdict.kind), wakeAt };
    }
    case 'full': {
      const tried = { ...row, triedAt: iso(observed.now) };
      return { row: tried, isHeld: true, deletes: jobs, ended: ended('unscheduled') };
    }
    case 'none':
    default:
      return { ...atRest(context, row), deletes: jobs };
  }
}

function ended(result: Result): NonNullable<Decision['ended']> {
  return { type: 'uncache', result };
}

function underWay(
  context: HostContext,
  row: NodeCacheState,
  { job, wakeAt }: Verdict & { kind: 'underWay' },
): Decision {
  return job.isParked && isLost(context)
    ? { row: undefined, isHeld: false, deletes: [] }
    : { row, isHeld: true, deletes: [], wakeAt };
}

function atRest(context: HostContext, row: NodeCacheState): Omit<Decision, 'deletes'> {
  const { observed } = context;
  if (row.retryAt !== undefined) {
    const wakeAt = Date.parse(row.retryAt);
    return observed.now < wakeAt ? { row, isHeld: true, wakeAt } : queued(context);
  }
  const { message: _message, ...rest } = row;
  const why = obstacle(context);
  if (why === undefined) {
    return { row: rest, isHeld: true, start: { type: 'uncache', isParked: false } };
  }
  const told = { ...rest, message: why };
  return isLost(context)
    ? { row: told, isHeld: true, start: { type: 'uncache', isParked: true } }
    : { row: told, isHeld: true, wakeAt: lostAt(context) };
}

function queued({ host, row, observed }: HostContext): Omit<Decision, 'deletes'> {
  const { failures } = row ?? {};
  const fresh: NodeCacheState = {
    node: host.name,
    state: 'Removing',
    queuedAt: iso(observed.now),
    ...(failures !== undefined && { failures }),
  };
  return { row: fresh, isHeld: true, wakeAt: observed.now };
}

/**
 * An entry that is being deleted does not wait for a host for ever: one that is not Ready for as long as a
 * silent host that loses its VMs is given up, and a Job that waits for it stays behind.
 */
function isLost(context: HostContext): boolean {
  const at = lostAt(context);
  return at !== undefined && context.observed.now >= at;
}

function lostAt({ host, observed }: HostContext): number | undefined {
  const isDeleted = observed.entry.metadata.deletionTimestamp !== undefined;
  return isDeleted && host.notReadySince !== undefined
    ? host.notReadySince + observed.config.hostLostTimeoutSeconds * 1000
    : undefined;
}
