/** The log of a VM, which goes on while the guest writes. */
import { useEffect, useMemo, useRef } from 'preact/hooks';
import type { Api } from '../data/api.ts';
import { LiveLog } from '../data/livelog.ts';
import type { VMRef } from '../data/vmstream.ts';
import { visibleRange } from '../model/visible.ts';
import { useChanges, useViewport } from './hooks.ts';

interface LogViewProps {
  readonly api: Api;
  readonly vm: VMRef;
}

/** Height of a line in pixels. The style sheet has the same height. */
const LINE_HEIGHT = 18;

export function LogView({ api, vm: { namespace, name } }: LogViewProps) {
  const live = useMemo(() => new LiveLog(api, { namespace, name }), [api, namespace, name]);
  useEffect(() => {
    live.start();
    return () => live.stop();
  }, [live]);
  useChanges(live.views);
  const [element, viewport] = useViewport(LINE_HEIGHT);
  const count = useRef(0);
  const { lines } = live;
  const isAtEnd = viewport.top + viewport.height >= (count.current - 2) * LINE_HEIGHT;
  count.current = lines.length;
  useEffect(() => {
    if (isAtEnd && element.current !== null) {
      element.current.scrollTop = element.current.scrollHeight;
    }
  });
  const { first, end, above, below } = visibleRange(lines.length, LINE_HEIGHT, viewport);
  return (
    <section class="stream" aria-label={`Log of VM ${name}`}>
      <p class={live.freshness.state === 'live' ? 'calm' : 'stale'} role="status">
        {stateText(live)}
      </p>
      {/* The keyboard scrolls the log, which has no links. */}
      <div class="log" ref={element} tabIndex={0} role="region" aria-label="Lines">
        <div style={{ height: `${above}px` }} />
        {lines.slice(first, end).map(({ time, text }, index) => (
          <div key={first + index} class="log-line">
            <time dateTime={time}>{time.slice(11, 19)}</time> {text}
          </div>
        ))}
        <div style={{ height: `${below}px` }} />
      </div>
    </section>
  );
}

function stateText({ freshness, lines }: LiveLog): string {
  switch (freshness.state) {
    case 'loading':
      return 'Reading the log…';
    case 'live':
      return lines.length === 0
        ? 'The guest has written nothing to its serial console yet.'
        : 'The newest lines of the serial console, with their times in UTC.';
    default:
      return `The log could not be read: ${freshness.message.replace(/\.$/, '')}.`;
  }
}
