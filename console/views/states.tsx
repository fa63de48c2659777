/** The states of a page without its objects: loading, forbidden, empty, and a lost connection. Each says what to do. */
import type { ComponentChildren } from 'preact';
import type { Freshness } from '../data/follow.ts';

interface NoticeProps {
  readonly title: string;
  readonly children?: ComponentChildren;
}

export function Notice({ title, children }: NoticeProps) {
  return (
    <div class="notice">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

interface StateProps {
  readonly freshness: Freshness;
  /** The objects in the plural, for example `VMs`. */
  readonly what: string;
  readonly namespace: string | undefined;
}

/** Shows why there are no objects to show. */
export function ReadState({ freshness, what, namespace }: StateProps) {
  const where = namespace === undefined ? 'in all namespaces' : `in namespace ${namespace}`;
  if (freshness.state === 'loading' || freshness.state === 'live') {
    return (
      <p class="loading" role="status">
        Reading {what} {where}…
      </p>
    );
  }
  const { state, status, message } = freshness;
  if (status === 403) {
    return (
      <Notice title={`You may not list ${what} ${where}`}>
        <p>{message}</p>
        <p>Choose another namespace above, or ask an administrator for a role there.</p>
      </Notice>
    );
  }
  if (status === 404) {
    return (
      <Notice title={`There is no namespace ${namespace ?? ''}`}>
        <p>{message}</p>
        <p>Choose another namespace above.</p>
      </Notice>
    );
  }
  return (
    <Notice title={`The ${what} could not be read`}>
      <p>{message}</p>
      <p>{state === 'stale' ? 'The page tries again by itself.' : 'Load the page again to try again.'}</p>
    </Notice>
  );
}

/** Shows that objects on the page may be out of date. */
export function StaleNotice({ freshness }: { readonly freshness: Freshness }) {
  return freshness.state === 'stale' ? (
    <p class="stale" role="status">
      Connection lost: {freshness.message}. The page shows the last known state and tries again by itself.
    </p>
  ) : null;
}
