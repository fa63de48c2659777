/** The story of an Image or ISO as Events: one on each transition that a person would ask about. */
import type { Image, ImageStatus } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { EventRecorder } from '../../kube/events.ts';

export function recordImageEvents(recorder: EventRecorder, object: Image | ISO, next: ImageStatus): void {
  const last: ImageStatus = object.status ?? {};
  if (next.phase !== last.phase) {
    phaseEvent(recorder, object, next);
  }
  actionEvent(recorder, object, { verb: 'Commit', before: last.lastCommit, after: next.lastCommit });
  actionEvent(recorder, object, { verb: 'Push', before: last.lastPush, after: next.lastPush });
}

interface ActionChange {
  verb: string;
  before: ImageStatus['lastPush'];
  after: ImageStatus['lastPush'];
}

function actionEvent(
  recorder: EventRecorder,
  object: Image | ISO,
  { verb, before, after }: ActionChange,
): void {
  if (after?.finishedAt === undefined || after.finishedAt === before?.finishedAt) {
    return;
  }
  const { result = '', reference = '', message = '' } = after;
  const succeeded = result === 'Succeeded';
  recorder.event(object, {
    type: succeeded ? 'Normal' : 'Warning',
    reason: `${verb}${result}`,
    action: verb,
    message: succeeded ? reference : message,
  });
}

function phaseEvent(recorder: EventRecorder, object: Image | ISO, next: ImageStatus): void {
  const ready = next.conditions?.find(({ type }) => type === 'Ready');
  if (next.phase === 'Ready') {
    const message = `a disk of ${next.size ?? 'unknown size'}, ${next.digest ?? 'without content'}`;
    recorder.event(object, { type: 'Normal', reason: 'Ready', action: 'Pull', message });
  } else if (next.phase === 'Failed') {
    const { reason = 'Failed', message = '' } = ready ?? {};
    recorder.event(object, { type: 'Warning', reason, action: 'Pull', message });
  }
}
