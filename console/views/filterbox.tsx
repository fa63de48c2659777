/** The filter above a table. Its text is in the address of the page. */
import { useEffect, useRef } from 'preact/hooks';
import { formatPlace, type Place } from '../model/place.ts';

interface FilterBoxProps {
  readonly place: Extract<Place, { filter: string }>;
  readonly placeholder: string;
  readonly help: string;
}

export function FilterBox({ place, placeholder, help }: FilterBoxProps) {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const focus = (event: KeyboardEvent) => {
      if (event.key === '/' && !(event.target instanceof HTMLInputElement)) {
        event.preventDefault();
        input.current?.focus();
      }
    };
    addEventListener('keydown', focus);
    return () => removeEventListener('keydown', focus);
  }, []);
  return (
    <div class="filter">
      <label for="filter">Filter</label>
      <input
        id="filter"
        type="search"
        ref={input}
        value={place.filter}
        spellcheck={false}
        placeholder={placeholder}
        aria-describedby="filter-help"
        onInput={({ currentTarget }) => replacePlace({ ...place, filter: currentTarget.value })}
      />
      <small id="filter-help">
        <kbd>/</kbd> {help}
      </small>
    </div>
  );
}

/** Shows another place without a step in the history, so that a step back does not go through each typed letter. */
function replacePlace(place: Place): void {
  location.replace(formatPlace(place));
}
