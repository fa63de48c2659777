/** A part of a whole, as a bar with its numbers. */
interface MeterProps {
  readonly value: number;
  readonly of: number;
  /** Unit after the value. Without it, the bar shows both numbers. */
  readonly unit?: string;
  /** What the numbers count, for those who do not see the bar. */
  readonly what: string;
}

export function Meter({ value, of, unit, what }: MeterProps) {
  const share = of > 0 ? Math.min(1, Math.max(0, value / of)) : 0;
  return (
    <span class="meter" title={`${value} of ${of} ${what}`}>
      <span class="meter-bar" aria-hidden="true">
        <span class="meter-part" style={{ width: `${share * 100}%` }} />
      </span>
      <span class="meter-text">{unit === undefined ? `${value} of ${of}` : `${value} ${unit}`}</span>
    </span>
  );
}
