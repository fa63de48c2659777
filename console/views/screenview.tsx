/** The screen of a VM, with keyboard and mouse. */
import { useEffect, useReducer, useRef, useState } from 'preact/hooks';
import type { Api } from '../data/api.ts';
import { showScreen, type Viewer } from '../data/screen.ts';
import type { StreamState, VMRef } from '../data/vmstream.ts';
import { isLeaveKey } from '../model/keys.ts';
import { StreamBar } from './streambar.tsx';

interface ScreenViewProps {
  readonly api: Api;
  readonly vm: VMRef;
}

export function ScreenView({ api, vm: { namespace, name } }: ScreenViewProps) {
  const [attempt, connectAgain] = useReducer((count: number) => count + 1, 0);
  const [state, setState] = useState<StreamState>({ state: 'connecting' });
  const viewer = useRef<Viewer>(undefined);
  const target = useRef<HTMLDivElement>(null);
  const bar = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const { current } = target;
    const end = new AbortController();
    setState({ state: 'connecting' });
    const events = {
      onConnected: () => setState({ state: 'open' }),
      onEnd: (reason: string) => !end.signal.aborted && setState({ state: 'ended', reason }),
    };
    if (current !== null) {
      showScreen(current, { api, vm: { namespace, name }, signal: end.signal, events }).then(
        (shown) => {
          viewer.current = shown;
        },
        () => events.onEnd('The part of the page that draws screens could not be loaded. Try again'),
      );
    }
    return () => {
      end.abort();
      viewer.current = undefined;
    };
  }, [api, namespace, name, attempt]);
  // noVNC takes all keys of its canvas, so this one is taken before.
  const leave = (event: KeyboardEvent) => {
    if (isLeaveKey(event)) {
      event.preventDefault();
      event.stopPropagation();
      viewer.current?.blur();
      bar.current?.querySelector('button')?.focus();
    }
  };
  return (
    <section class="stream" aria-label={`Screen of VM ${name}`}>
      <StreamBar bar={bar} state={state} onAgain={() => connectAgain(undefined)}>
        <button
          type="button"
          disabled={state.state !== 'open'}
          onClick={() => viewer.current?.sendCtrlAltDel()}
        >
          Ctrl+Alt+Del
        </button>
        <button
          type="button"
          disabled={state.state !== 'open'}
          onClick={() => void target.current?.requestFullscreen()}
        >
          Full screen
        </button>
        <p class="calm">Click the screen to use keyboard and mouse. Ctrl+] leaves it.</p>
      </StreamBar>
      <div class="screen" ref={target} onKeyDownCapture={leave} />
    </section>
  );
}
