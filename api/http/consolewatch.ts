/**
 * The WebSocket with which the console watches objects. A page has one, which carries all its watches.
 *
 * The page sends texts: {@link WatchRequest} as JSON. The server sends binary messages: the number of the watch ({@link WATCH_ID_BYTES},
 * big-endian) and a piece of the watch, as the API server sends it. The first piece is an empty line. It says that the API server has begun the
 * watch. A text, {@link WatchEnd} as JSON, tells that a watch has ended.
 */

export const WATCH_PATH = '/console/watch';
export const WATCH_PROTOCOL = 'v1.watch.berth.dev';
/** Largest number of watches over one WebSocket. A page needs four. The others are for those that it has just left. */
export const SOCKET_WATCHES = 8;
export const WATCH_ID_BYTES = 4;
/**
 * Beginning of the protocol with which a browser sends a bearer token, because it can set no other header of a WebSocket. The rest of the
 * protocol is the token, encoded as base64url without padding. API servers take it, too.
 */
export const TOKEN_PROTOCOL = 'base64url.bearer.authorization.k8s.io.';

/** What a watch reads. */
export interface WatchStart {
  /** Number that the page has chosen. It uses each number once. */
  readonly id: number;
  /** Path of the objects below `/console/objects/`. */
  readonly path: string;
  /** Version after which the events begin. */
  readonly resourceVersion: string;
}

export type WatchRequest = { readonly start: WatchStart } | { readonly stop: number };

/** End of a watch. Without `code`, the page begins the next one. */
export interface WatchEnd {
  readonly id: number;
  /** HTTP status of the refusal. */
  readonly code?: number;
  readonly message?: string;
}
