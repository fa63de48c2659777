/** Works on objects that the user names. */
import { DEFAULT_NAMESPACE, isObjectName } from '../../api/v1alpha1/names.ts';
import { inParallel } from '../../base/concurrency.ts';
import { undefinedIf } from '../../base/errors.ts';
import { ApiError, isForbidden, isNotFound } from '../../kube/errors.ts';
import type { KubeObject, Resource } from '../../kube/objects.ts';
import type { UserCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import { printable } from '../text.ts';
import type { NounKind } from './kind.ts';
import { similarTo } from '../../base/similar.ts';

/** Returns the object with this name in the namespace. @throws CommandError when the object does not exist; ApiError. */
export async function getNamed<T extends KubeObject>(
  cluster: UserCluster,
  { type, noun }: Pick<NounKind<T>, 'type' | 'noun'>,
  name: string,
  signal: AbortSignal,
): Promise<T> {
  const { client, namespace } = cluster;
  const missing = (meant = '') =>
    new CommandError(
      `${noun} ${JSON.stringify(printable(name))} not found${placeOf(type, namespace)}${meant}`,
      EXIT.notFound,
    );
  // A name with a slash, or the name `..`, would lead to another path of the API server.
  if (!isObjectName(name)) {
    throw missing();
  }
  try {
    return await client.get(type, { namespace, name }, { signal });
  } catch (error) {
    // The API server also answers with status 404 if it does not have the kind. In this case, the message does not contain the name of the
    // object.
    if (!isNotFound(error) || !error.message.includes(`"${name}"`)) {
      throw error;
    }
    throw missing(await suggestion(cluster, type, name, signal));
  }
}

/** Returns the end of a sentence about objects: the namespace in which the command looks for them. */
export function placeOf({ namespaced }: Pick<Resource<KubeObject>, 'namespaced'>, namespace: string): string {
  return namespaced ? ` in namespace ${namespace}` : '';
}

/**
 * Returns the end of an error message: a question that suggests the most similar existing name. The result is empty if no name is similar,
 * or if the user may not list objects.
 */
async function suggestion<T extends KubeObject>(
  { client, namespace }: UserCluster,
  type: Resource<T>,
  name: string,
  signal: AbortSignal,
): Promise<string> {
  const page = await undefinedIf(
    (error) => error instanceof ApiError,
    client.pages(type, { namespace, signal }).next(),
  );
  const names = page?.done === false ? page.value.items.map(({ metadata }) => metadata.name) : [];
  const similar = similarTo(name, names);
  return similar === undefined ? '' : `. Did you mean ${similar}?`;
}

/**
 * Returns the object with this name in the namespace. If it does not exist and the kind is shared, returns the object in the default
 * namespace.
 *
 * @throws errors of {@link getNamed}.
 */
export async function findNamed<T extends KubeObject>(
  cluster: UserCluster,
  kind: NounKind<T>,
  name: string,
  signal: AbortSignal,
): Promise<T> {
  try {
    return await getNamed(cluster, kind, name, signal);
  } catch (error) {
    const isMissing = error instanceof CommandError && error.exitCode === EXIT.notFound;
    if (!isMissing || !kind.isShared || cluster.namespace === DEFAULT_NAMESPACE) {
      throw error;
    }
    const shared = getNamed({ ...cluster, namespace: DEFAULT_NAMESPACE }, kind, name, signal);
    const found = await undefinedIf(
      (reason) => reason instanceof CommandError || isForbidden(reason),
      shared,
    );
    if (found === undefined) {
      throw error;
    }
    return found;
  }
}

interface Outcome<T> {
  readonly done: readonly T[];
  /** If the work failed for at least one name, throws the errors. */
  readonly rethrow: () => void;
}

/** Largest number of names with which a command works at the same time. The work with each name can need a connection for a watch. */
const WIDTH = 100;

/**
 * Does the work for all names or objects, for at most {@link WIDTH} of them at the same time. If the work fails for one of them, it continues for the others. If the user
 * repeats a name, the work is done once for it. The results have the order of `names`.
 */
export async function forEachName<T, N = string>(
  names: readonly N[],
  work: (name: N) => Promise<T>,
): Promise<Outcome<T>> {
  const outcomes: PromiseSettledResult<T>[] = [];
  const never = new AbortController();
  await inParallel([...new Set(names)].entries(), WIDTH, never.signal, async ([index, name]) => {
    const [outcome] = await Promise.allSettled([work(name)]);
    outcomes[index] = outcome;
  });
  const errors = outcomes
    .filter((outcome) => outcome.status === 'rejected')
    .map(({ reason }) => reason as unknown);
  return {
    done: outcomes.filter((outcome) => outcome.status === 'fulfilled').map(({ value }) => value),
    rethrow: () => {
      if (errors.length > 0) {
        throw errors.length === 1 ? errors[0] : new AggregateError(errors);
      }
    },
  };
}
