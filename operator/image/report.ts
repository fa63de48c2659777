/**
 * Whether a host's report about its task can be true. A host may lie, also because its agent was taken over. It may say how a task
 * ended; the result always lies where the task was to put it. Pure.
 */
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { isSha256, readReference, repositoryName } from '../../api/v1alpha1/reference.ts';
import type { StorageTarget, Task, TaskReport } from '../../api/v1alpha1/task.ts';
import type { TaskOutcome } from '../tasks/outcome.ts';

/** The reason of a task whose report does not fit it. */
const REPORT_REFUSED: Reason = 'ReportRefused';
/** The largest disk that a VM may have (`diskSize`): 1Pi. */
const SIZE_LIMIT_BYTES = 1024 ** 5;

/** The outcome of a task, failed when its report does not fit it. `host`: whose word it is. */
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
  const message = `host ${host ?? 'unknown'} ${fault}; nothing of its report is used`;
  return { kind: 'failed', reason: REPORT_REFUSED, message, finishedAt: outcome.finishedAt };
}

/** Why a report cannot be the result of the task, as words that follow the host's name; undefined when it can. */
export function reportFault(task: Task | undefined, report: TaskReport): string | undefined {
  switch (task?.type) {
    case 'import':
      return sizeFault(report) ?? importFault(task, report);
    case 'save':
      return sizeFault(report) ?? storedFault(task.target, report);
    case 'push':
      return sizeFault(report) ?? pinnedFault(task.reference, report);
    case undefined:
      return 'did a task that cannot be read';
    default:
      // These name no content.
      return undefined;
  }
}

function importFault({ image, target }: Task & { type: 'import' }, report: TaskReport): string | undefined {
  if (target !== undefined) {
    return storedFault(target, report);
  }
  const { source } = image;
  if (source.type === 'registry') {
    return digestFault(report) ?? repositoryFault(source.reference, report);
  }
  if (source.type === 'http' && report.digest !== `sha256:${source.sha256.toLowerCase()}`) {
    return `reported ${said(report.digest)}, not the sha256 that the source names`;
  }
  return digestFault(report) ?? noReferenceFault(report);
}

/** A file lies at the task's own path; of an artifact only the digest is the host's to say. */
function storedFault(target: StorageTarget, report: TaskReport): string | undefined {
  return target.type === 'folder'
    ? (digestFault(report) ?? noReferenceFault(report))
    : (digestFault(report) ?? pinnedFault(target.reference, report));
}

/** The reference of written content ends with the digest that was reported with it. */
function pinnedFault(asked: string, report: TaskReport): string | undefined {
  const { reference = '', digest } = report;
  const isSame = digest === undefined || reference.endsWith(`@${digest}`);
  return repositoryFault(asked, report) ?? (isSame ? undefined : `reported two digests: ${said(digest)} too`);
}

/** The repository that was asked for, by digest alone; by the same digest when one was asked for. */
function repositoryFault(asked: string, { reference }: TaskReport): string | undefined {
  const parts = readReference(asked);
  if (typeof parts === 'string') {
    return 'did a task whose reference cannot be read';
  }
  const repository = repositoryName(parts);
  const pinned = parts.digest;
  const start = `${repository}@`;
  const digest = reference?.startsWith(start) === true ? reference.slice(start.length) : '';
  if (!isSha256(digest)) {
    return `reported ${said(reference)}, not ${repository} with a digest`;
  }
  return pinned === undefined || pinned === digest
    ? undefined
    : `reported ${said(digest)}, not ${pinned} that was asked for`;
}

function digestFault({ digest }: TaskReport): string | undefined {
  return digest !== undefined && isSha256(digest) ? undefined : `reported ${said(digest)} as the digest`;
}

function noReferenceFault({ reference }: TaskReport): string | undefined {
  return reference === undefined ? undefined : `reported ${said(reference)}, where there is no registry`;
}

function sizeFault({ sizeBytes = 0, storageBytes = 0 }: TaskReport): string | undefined {
  const wrong = [sizeBytes, storageBytes].find((size) => size < 0 || size > SIZE_LIMIT_BYTES);
  return wrong === undefined ? undefined : `reported a size of ${wrong} bytes`;
}

/** A host's words are shown in part only. */
function said(text: string | undefined): string {
  const shown = 200;
  return text === undefined ? 'nothing' : JSON.stringify(text.slice(0, shown));
}
