/** Hooks that several views use. */
import { useEffect, useReducer, useRef, useState } from 'preact/hooks';
import type { RefObject } from 'preact';
import type { Views } from '../data/views.ts';
import { type Place, parsePlace } from '../model/place.ts';
import type { Viewport } from '../model/visible.ts';

/** Renders the view again after changes, at most once per second. */
export function useChanges(views: Views): void {
  const [, render] = useReducer((count: number) => count + 1, 0);
  useEffect(() => views.subscribe(() => render(undefined)), [views]);
}

/** Returns the place in the address, and renders the view again when it changes. */
export function usePlace(): Place {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const look = () => setHash(location.hash);
    addEventListener('hashchange', look);
    return () => removeEventListener('hashchange', look);
  }, []);
  return parsePlace(hash);
}

/**
 * Returns the visible part of the element, which scrolls its content, and its width in pixels. The top is rounded down to a multiple of `step`
 * pixels, because the view is rendered again after each change of it.
 */
export function useViewport(
  step: number,
): [RefObject<HTMLDivElement | null>, Viewport & { readonly width: number }] {
  const element = useRef<HTMLDivElement>(null);
  const [viewport, setViewport] = useState({ top: 0, height: 600, width: 800 });
  useEffect(() => {
    const { current } = element;
    if (current === null) {
      return undefined;
    }
    const look = () => {
      const { scrollTop, clientHeight: height, clientWidth: width } = current;
      const top = Math.floor(scrollTop / step) * step;
      setViewport((last) =>
        last.top === top && last.height === height && last.width === width ? last : { top, height, width },
      );
    };
    const observer = new ResizeObserver(look);
    observer.observe(current);
    current.addEventListener('scroll', look, { passive: true });
    return () => {
      observer.disconnect();
      current.removeEventListener('scroll', look);
    };
  }, [step]);
  return [element, viewport];
}
