/** State of a stream of a VM, and what to do with it. */
import type { ComponentChildren, RefObject } from 'preact';
import type { StreamState } from '../data/vmstream.ts';

interface StreamBarProps {
  readonly bar: RefObject<HTMLDivElement | null>;
  readonly state: StreamState;
  readonly onAgain: () => void;
  /** Buttons, and how to use the stream. */
  readonly children: ComponentChildren;
}

export function StreamBar({ bar, state, onAgain, children }: StreamBarProps) {
  return (
    <div class="stream-bar" ref={bar}>
      <p class={state.state === 'ended' ? 'stale' : 'calm'} role="status">
        {textOf(state)}
      </p>
      <button type="button" onClick={onAgain} disabled={state.state === 'connecting'}>
        Connect again
      </button>
      {children}
    </div>
  );
}

function textOf(state: StreamState): string {
  if (state.state === 'ended') {
    return state.reason === '' ? 'The connection has ended.' : `${state.reason.replace(/\.$/, '')}.`;
  }
  return state.state === 'open' ? 'Connected.' : 'Connecting…';
}
