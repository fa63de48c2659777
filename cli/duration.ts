/** Reads durations that users give in flags, and writes durations for people. */
import { InvalidArgumentError } from 'commander';

const UNITS: Readonly<Record<string, number>> = { s: 1_000, m: 60_000, h: 3_600_000 };
/** Longest duration that users can give. Timers of Node.js cannot wait longer than 24 days, so the maximum must not exceed 24 days. */
const MAXIMUM_MILLISECONDS = 7 * 24 * 3_600_000;
/**
 * A duration of at least this number of seconds is shown in minutes. A duration of at least this number of minutes is shown in hours. For a
 * shorter duration, the larger unit would be too imprecise.
 */
const MANY = 120;

/**
 * Returns the duration in milliseconds. A number without a unit is in minutes, as in `vm deploy --timeout`.
 *
 * @throws InvalidArgumentError when the text has another form.
 */
export function parseDuration(text: string): number {
  const [, number = '', unit = 'm'] = /^(\d{1,7})([smh])?$/.exec(text) ?? [];
  const milliseconds = Number(number) * (UNITS[unit] ?? 0);
  if (milliseconds < 1 || milliseconds > MAXIMUM_MILLISECONDS) {
    throw new InvalidArgumentError('It must be a duration from 1s to 168h, such as 90s, 10m or 2h.');
  }
  return milliseconds;
}

/** Returns the duration for people, for example `90 s` or `10 min`. */
export function timeText(milliseconds: number): string {
  const seconds = Math.round(milliseconds / 1_000);
  const minutes = Math.round(seconds / 60);
  return seconds < MANY
    ? `${seconds} s`
    : minutes < MANY
      ? `${minutes} min`
      : `${Math.round(minutes / 60)} h`;
}
