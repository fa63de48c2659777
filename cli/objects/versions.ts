/** Follows the versions of an object until it reaches a goal. */
import { follow } from '../../kube/follow.ts';
import type { Condition, KubeObject, Resource } from '../../kube/objects.ts';
import type { UserCluster } from '../cluster.ts';

/**
 * Yields `first` and then each new version of the object, and ends when the object is deleted. If the caller stops early, the watch ends too.
 *
 * @throws the errors of {@link follow}.
 */
export async function* versionsFrom<T extends KubeObject>(
  { client, watches }: UserCluster,
  type: Resource<T>,
  first: T,
  signal: AbortSignal,
): AsyncGenerator<T> {
  const versions = follow<T>({ client, watches, type, from: first.metadata, signal });
  try {
    yield first;
    yield* versions;
  } finally {
    await versions.return(undefined);
  }
}

export interface ConditionGoal {
  readonly state: 'condition';
  readonly type: string;
  readonly status: string;
}

const CONDITION = /^condition=([A-Za-z][A-Za-z0-9./-]{0,315})(?:=(true|false|unknown))?$/i;

/** Reads `condition=TYPE` or `condition=TYPE=STATUS`. The result is undefined if the text has another form. */
export function parseConditionGoal(text: string): ConditionGoal | undefined {
  const [, type, status = 'True'] = CONDITION.exec(text) ?? [];
  return type === undefined ? undefined : { state: 'condition', type, status: capitalized(status) };
}

/** As in kubectl, the case of letters in the type does not matter, and a condition of an earlier generation does not count. */
export function hasCondition(
  {
    metadata: { generation },
    status,
  }: Pick<KubeObject, 'metadata'> & {
    readonly status?: { readonly conditions?: readonly Condition[] | undefined };
  },
  wanted: ConditionGoal,
): boolean {
  const type = wanted.type.toLowerCase();
  const condition = status?.conditions?.find((one) => one.type.toLowerCase() === type);
  // A VM that was stopped is Ready until the operator has seen its start.
  const isCurrent = (condition?.observedGeneration ?? generation) === generation;
  return isCurrent && condition?.status === wanted.status;
}

function capitalized(word: string): string {
  return word.charAt(0).toUpperCase() + word.slice(1).toLowerCase();
}
