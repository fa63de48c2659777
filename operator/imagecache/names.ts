/** What marks the Jobs of an ImageCacheEntry as its own. */
import { createHash } from 'node:crypto';

/** On Jobs and their Pods: whose they are. Names may be used again, uids never. */
export const ENTRY_UID_LABEL = 'berth.dev/cache-entry-uid';
/** For people; a label holds no more than 63 characters, a name 253. */
export const ENTRY_NAME_LABEL = 'berth.dev/cache-entry';
/** On a Job: the state of its host's queue that it was made in. One that differs has been reckoned with already. */
export const TURN_ANNOTATION = 'berth.dev/cache-turn';
/** On the entry: held until no host keeps anything for it. */
export const CACHE_FINALIZER = 'berth.dev/image-cache';

const LABEL_LENGTH = 63;
/** 96 bits: two hosts of one cluster never share a name. */
const HASH_DIGITS = 24;

export type TaskType = 'cache' | 'uncache';

/** One name for each host and kind of work: made twice by accident, the second is refused. */
export function jobName(type: TaskType, entryUid: string, host: string): string {
  return `${type}-${digest(`${entryUid}/${host}`).slice(0, HASH_DIGITS)}`;
}

export function nameLabel(name: string): string {
  return name.slice(0, LABEL_LENGTH).replace(/[^a-z0-9]+$/, '');
}

/** Entries go through their hosts in different orders, or all of them would ask the first host first. */
export function lot(entryUid: string, host: string): string {
  return digest(`${host}/${entryUid}`);
}

function digest(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}
