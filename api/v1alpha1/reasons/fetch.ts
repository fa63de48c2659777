/** Reasons why a host cannot fetch an image, although the image can be right. */

/** Places where a reason appears when a host cannot fetch an image for a VM, an Image or the cache. */
export const FETCH = {
  VM: ['ImageReady', 'Ready', 'Stalled', 'Event'],
  Image: ['Ready', 'Stalled', 'Event'],
  ImageCacheEntry: ['status.nodes'],
  Pod: ['waiting', 'terminated', 'Event'],
} as const;

export const FETCH_REASONS = {
  ImageFetchFailed: {
    seen: FETCH,
    class: 'passing',
    by: 'agent',
    says: 'The server does not answer, or the transfer was interrupted and could not be resumed',
    todo: 'Read the condition’s message, and check that the host reaches the server',
  },
  TooSlow: {
    seen: FETCH,
    class: 'passing',
    by: 'agent',
    says: 'The source sent fewer than 16 KiB per second for five minutes. The next attempt continues the fetch',
    todo: 'Find out why the source is slow, or use a faster one',
  },
  DiskFull: {
    seen: FETCH,
    class: 'passing',
    by: 'agent',
    says: 'The host has too little disk space for the image. The condition’s message contains the needed bytes, and the agent’s log the free ones',
    todo: 'Free space on the disk of the host, or add a larger disk',
  },
} as const;
