/**
 * Checks whether a host's report about its task can be true. A host can lie, for example after somebody took over its agent. The operator
 * believes a report of success, but accepts only content at the place that the task names. All functions are pure.
 */
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { isSha256, readReference, repositoryName } from '../../api/v1alpha1/reference.ts';
import { registryReference } from '../../api/v1alpha1/source.ts';
import type { StorageTarget, Task, TaskReport } from '../../api/v1alpha1/task.ts';
import type { TaskOutcome } from '../tasks/outcome.ts';
import { traitsOf } from './content.ts';

/** Reason of a task that counts as failed, because the report of the host does not match the task. */
const REPORT_REFUSED: Reason = 'ReportRefused';
/** Size in bytes of the largest disk that a VM can have (`diskSize`): 1Pi. */
const SIZE_LIMIT_BYTES = 1024 ** 5;

/**
 * Returns the outcome of a task. If the report does not match the task, the result is a failure. `host` is the name of the host that
 * reported.
 */
export function checkedOutcome(
  outcome: TaskOutcome,
  task: Task | undefined,
  host: string | undefined,
): TaskOutcome {
  if (outcome.kind !== 'succeeded') {
    return outcome;
  }
  const fault = reportFault(task, outcome.report);
  if (fault === undefined) {
    return outcome;
  }
  const message = `Host ${host ?? 'unknown'} ${fault}. The operator ignores the report`;
  return { kind: 'failed', reason: REPORT_REFUSED, message, finishedAt: outcome.finishedAt };
}

/**
 * Returns the reason why a report cannot be the result of the task. In a message, the reason comes after the host's name. The result is
 * undefined if the report can be right.
 */
export function reportFault(task: Task | undefined, report: TaskReport): string | undefined {
  switch (task?.type) {
    case 'import':
      return sizeFault(report) ?? importFault(task, report);
    case 'save':
    case 'receive':
      return sizeFault(report) ?? storedFault(task.target, report);
    case 'push':
      return sizeFault(report) ?? pinnedFault(task.reference, report);
    case undefined:
      return 'sent a report, but the operator cannot read the task of the Job';
    default:
      // A report about a task of any other type does not name content, so there is nothing to check.
      return undefined;
  }
}

function importFault({ image, target }: Task & { type: 'import' }, report: TaskReport): string | undefined {
  if (target !== undefined) {
    return storedFault(target, report);
  }
  const reference = registryReference(image.source);
  if (reference !== undefined) {
    return digestFault(report) ?? repositoryFault(reference, report);
  }
  const { digest } = traitsOf(image.source);
  if (digest !== undefined && digest !== report.digest) {
    return `reported ${said(report.digest)}, but the source has another sha256`;
  }
  return digestFault(report) ?? noReferenceFault(report);
}

/**
 * Checks a report about stored content. A report about a file must not name a place, because the task determines the path. A report about
 * an artifact must name the repository of the task, with a digest.
 */
function storedFault(target: StorageTarget, report: TaskReport): string | undefined {
  return target.type === 'folder'
    ? (digestFault(report) ?? noReferenceFault(report))
    : (digestFault(report) ?? pinnedFault(target.reference, report));
}

/**
 * Checks a report about an artifact. The reported `reference` must name the requested repository, and end with the reported `digest` if
 * there is one.
 */
function pinnedFault(asked: string, report: TaskReport): string | undefined {
  const { reference = '', digest } = report;
  const isSame = digest === undefined || reference.endsWith(`@${digest}`);
  return (
    repositoryFault(asked, report) ??
    (isSame ? undefined : `reported a reference whose digest is not ${said(digest)}`)
  );
}

/**
 * Checks that the report names the requested repository with a digest and without a tag. If a digest was requested, the report
 * must name the same digest.
 */
function repositoryFault(asked: string, { reference }: TaskReport): string | undefined {
  const parts = readReference(asked);
  if (typeof parts === 'string') {
    return 'sent a report, but the image reference in the task is not valid';
  }
  const repository = repositoryName(parts);
  const pinned = parts.digest;
  const start = `${repository}@`;
  const digest = reference?.startsWith(start) === true ? reference.slice(start.length) : '';
  if (!isSha256(digest)) {
    return `reported ${said(reference)}, but the result must be ${repository} with a digest`;
  }
  return pinned === undefined || pinned === digest
    ? undefined
    : `reported ${said(digest)}, but the task names ${pinned}`;
}

function digestFault({ digest }: TaskReport): string | undefined {
  return digest !== undefined && isSha256(digest)
    ? undefined
    : `reported ${said(digest)} instead of a digest`;
}

function noReferenceFault({ reference }: TaskReport): string | undefined {
  return reference === undefined
    ? undefined
    : `reported the reference ${said(reference)}, but the task has no registry`;
}

function sizeFault({ sizeBytes = 0, storageBytes = 0 }: TaskReport): string | undefined {
  const wrong = [sizeBytes, storageBytes].find((size) => size < 0 || size > SIZE_LIMIT_BYTES);
  return wrong === undefined ? undefined : `reported a size of ${wrong} bytes`;
}

/** Returns at most 200 characters of a text that a host reported, in quotation marks. */
function said(text: string | undefined): string {
  const shown = 200;
  return text === undefined ? 'nothing' : JSON.stringify(text.slice(0, shown));
}
