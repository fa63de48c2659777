/** The serial console of a VM, which takes keys and pasted text. */
import { useEffect, useReducer, useRef, useState } from 'preact/hooks';
import type { Api } from '../data/api.ts';
import { LiveConsole } from '../data/liveconsole.ts';
import type { VMRef } from '../data/vmstream.ts';
import { isLeaveKey, textOfKey, textOfPaste } from '../model/keys.ts';
import type { SerialTerminal } from '../model/terminal.ts';
import type { TerminalLine } from '../model/terminalgrid.ts';
import { StreamBar } from './streambar.tsx';

const CONNECTING = { state: 'connecting' } as const;

interface ConsoleViewProps {
  readonly api: Api;
  readonly vm: VMRef;
}

export function ConsoleView({ api, vm: { namespace, name } }: ConsoleViewProps) {
  const [attempt, connectAgain] = useReducer((count: number) => count + 1, 0);
  const [, render] = useReducer((count: number) => count + 1, 0);
  const [live, setLive] = useState<LiveConsole>();
  const bar = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const console = new LiveConsole(api, { namespace, name }, () => render(undefined));
    setLive(console);
    return () => console.close();
  }, [api, namespace, name, attempt]);
  const press = (event: KeyboardEvent) => {
    if (isLeaveKey(event)) {
      event.preventDefault();
      bar.current?.querySelector('button')?.focus();
      return;
    }
    const text = textOfKey(event, live?.terminal.hasApplicationKeys ?? false);
    if (text !== undefined) {
      event.preventDefault();
      live?.type(text);
    }
  };
  const paste = (event: ClipboardEvent) => {
    event.preventDefault();
    live?.type(textOfPaste(event.clipboardData?.getData('text/plain') ?? ''));
  };
  return (
    <section class="stream" aria-label={`Serial console of VM ${name}`}>
      <StreamBar bar={bar} state={live?.state ?? CONNECTING} onAgain={() => connectAgain(undefined)}>
        <p class="calm">Click the console and type. Ctrl+] leaves it.</p>
      </StreamBar>
      {live === undefined ? null : (
        <div
          class="terminal"
          role="textbox"
          aria-multiline="true"
          aria-label={`Console of ${name}`}
          tabIndex={0}
          onKeyDown={press}
          onPaste={paste}
        >
          <Lines terminal={live.terminal} />
        </div>
      )}
    </section>
  );
}

function Lines({ terminal: { grid } }: { readonly terminal: SerialTerminal }) {
  const { cursor } = grid;
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => end.current?.scrollIntoView({ block: 'nearest' }));
  return (
    <>
      {grid.earlier.map((line) => (
        <Line key={line.id} line={line} />
      ))}
      {grid.lines.map((line, row) => (
        <Line key={line.id} line={line} cursor={cursor?.row === row ? cursor.column : undefined} />
      ))}
      <div ref={end} />
    </>
  );
}

interface LineProps {
  readonly line: TerminalLine;
  /** Column of the cursor, if it is in this line. */
  readonly cursor?: number | undefined;
}

function Line({ line: { runs }, cursor }: LineProps) {
  return (
    <div class="terminal-line">
      {runs.map(({ text, style }, index) =>
        style === '' ? (
          text
        ) : (
          // The runs of a line have no other names than their places.
          <span key={index} class={style}>
            {text}
          </span>
        ),
      )}
      {cursor === undefined ? null : <i class="cursor" style={{ left: `${cursor}ch` }} />}
    </div>
  );
}
