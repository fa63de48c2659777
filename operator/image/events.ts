/** Records Events of an Image or ISO: when its phase becomes Ready or Failed, and when a commit or push ends. */
import type { Image, ImageStatus } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { saidReason } from '../../api/v1alpha1/reasons.ts';
import { conditionIn } from '../objects/conditions.ts';
import { normal, type Recorder, warning } from '../objects/events.ts';

export function recordImageEvents(recorder: Recorder, object: Image | ISO, next: ImageStatus): void {
  const last: ImageStatus = object.status ?? {};
  if (next.phase !== last.phase) {
    phaseEvent(recorder, object, next);
  }
  actionEvent(recorder, object, { verb: 'Commit', before: last.lastCommit, after: next.lastCommit });
  actionEvent(recorder, object, { verb: 'Push', before: last.lastPush, after: next.lastPush });
}

const ACTION_REASONS = {
  Commit: { succeeded: 'CommitSucceeded', failed: 'CommitFailed' },
  Push: { succeeded: 'PushSucceeded', failed: 'PushFailed' },
} as const;

interface ActionChange {
  verb: 'Commit' | 'Push';
  before: ImageStatus['lastPush'];
  after: ImageStatus['lastPush'];
}

function actionEvent(recorder: Recorder, object: Image | ISO, { verb, before, after }: ActionChange): void {
  if (after?.finishedAt === undefined || after.finishedAt === before?.finishedAt) {
    return;
  }
  const { result, reference = '', message = '' } = after;
  recorder.event(
    object,
    result === 'Succeeded'
      ? normal(ACTION_REASONS[verb].succeeded, verb, reference)
      : warning(ACTION_REASONS[verb].failed, verb, message),
  );
}

function phaseEvent(recorder: Recorder, object: Image | ISO, next: ImageStatus): void {
  const ready = conditionIn(next, 'Ready');
  if (next.phase === 'Ready') {
    const message = `The image is ready. Size of its disk: ${next.size ?? 'unknown'}. Digest of its content: ${next.digest ?? 'none'}`;
    recorder.event(object, normal('Ready', 'Pull', message));
  } else if (next.phase === 'Failed') {
    recorder.event(object, warning(saidReason(ready?.reason, 'Failed'), 'Pull', ready?.message ?? ''));
  }
}
