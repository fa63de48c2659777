/** Reads which hosts a request for the cache of images is for. */
import type { CacheSelection } from '../../api/http/imagecache.ts';
import type { Node } from '../../kube/core.ts';
import { StatusError } from '../http/errors.ts';
import { tagsOf } from '../own/hosts.ts';

/**
 * Returns the names of the selected hosts. Host names in the request may be unknown.
 *
 * @throws StatusError 400 when not exactly one field selects hosts.
 */
export function selectedHosts(
  { nodes, tags, all }: CacheSelection,
  hosts: readonly Readonly<Node>[],
): readonly string[] {
  const named = namesIn(nodes);
  const tagged = namesIn(tags);
  const given = [named.length > 0, tagged.length > 0, all === true];
  if (given.filter(Boolean).length !== 1) {
    throw new StatusError(400, 'exactly one of nodes, tags and all is required');
  }
  if (named.length > 0) {
    return named;
  }
  return hosts.filter((host) => hasAll(new Set(tagsOf(host)), tagged)).map(({ metadata }) => metadata.name);
}

function hasAll(own: ReadonlySet<string>, wanted: readonly string[]): boolean {
  return wanted.every((tag) => own.has(tag));
}

function namesIn(given: string | readonly string[] = []): string[] {
  const names = typeof given === 'string' ? given.split(',') : given;
  return [...new Set(names.map((name) => name.trim()).filter((name) => name !== ''))];
}
