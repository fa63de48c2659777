/** Draws a day of power by demand as lines, for docs/how-to/power-by-demand.md. */
import type { Day, Sample } from '../worlds/demandday.ts';

const WIDTH = 720;
const HEIGHT = 260;
const LEFT = 40;
const TOP = 44;
const BOTTOM = 28;
const HOURS = 24;
/** Number of points of a line. More of them cannot be seen. */
const POINTS = 480;
/** Colours that can be read on light and dark pages. */
const COLOURS = { text: '#6e7781', hosts: '#2da44e', vms: '#0969da', all: '#8c959f' } as const;

/** Returns an SVG with the number of hosts that are on, and of hosts that the running VMs fill. */
export function drawDay(title: string, { samples }: Day, hosts: number, slots: number): string {
  const x = (hour: number) => LEFT + ((WIDTH - LEFT - 10) * hour) / HOURS;
  const y = (count: number) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - count / hosts);
  const line = (value: (sample: Sample) => number) =>
    thinned(samples)
      .map((sample) => `${x(sample.hour).toFixed(1)},${y(value(sample)).toFixed(1)}`)
      .join(' ');
  const texts = [0, 6, 12, 18, 24].map(
    (hour) => `  <text x="${x(hour)}" y="${HEIGHT - 8}" text-anchor="middle">${hour} h</text>`,
  );
  const counts = [0, hosts / 2, hosts].map(
    (count) => `  <text x="${LEFT - 6}" y="${y(count) + 4}" text-anchor="end">${count}</text>`,
  );
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" font-family="sans-serif" font-size="13" fill="${COLOURS.text}">`,
    `  <title>${title}</title>`,
    `  <text x="0" y="16" font-weight="bold">${title}</text>`,
    `  <text x="${LEFT}" y="34" fill="${COLOURS.hosts}">hosts that are on</text>`,
    `  <text x="${LEFT + 150}" y="34" fill="${COLOURS.vms}">hosts that the running VMs fill</text>`,
    `  <line x1="${x(0)}" y1="${y(hosts)}" x2="${x(HOURS)}" y2="${y(hosts)}" stroke="${COLOURS.all}" stroke-dasharray="4 4"/>`,
    `  <line x1="${x(0)}" y1="${y(0)}" x2="${x(HOURS)}" y2="${y(0)}" stroke="${COLOURS.all}"/>`,
    `  <polyline points="${line(({ vms }) => vms / slots)}" fill="none" stroke="${COLOURS.vms}" stroke-width="1.5"/>`,
    `  <polyline points="${line(({ hostsOn }) => hostsOn)}" fill="none" stroke="${COLOURS.hosts}" stroke-width="2"/>`,
    ...texts,
    ...counts,
    '</svg>',
    '',
  ].join('\n');
}

function thinned(samples: readonly Sample[]): readonly Sample[] {
  const step = Math.max(1, Math.floor(samples.length / POINTS));
  return samples.filter((_, index) => index % step === 0);
}
