/**
 * Draws the dashboard of the chart as an SVG. A real Prometheus scrapes the operator and the host of the demo while VMs come and go, and
 * answers each expression of the dashboard. The drawing has the panels and legends that Grafana shows, but is not Grafana.
 */
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parse, stringify } from 'yaml';
import type { Node } from '../kube/core.ts';
import { freePort } from './cluster/ports.ts';
import { type ProcessRecord, startProcess, stopProcess } from './cluster/processes.ts';
import { waitFor } from './wait.ts';

const DASHBOARD = join(import.meta.dirname, '..', 'charts', 'berth', 'files', 'monitoring', 'dashboard.json');
const PROGRAM = 'prometheus';
const ACCOUNT = 'dashboard-picture';
/** Interval of the scrapes and of the drawn points in seconds. */
const INTERVAL_SECONDS = 5;
/** Time in milliseconds in which VMs come and go. Shorter lines would show little. */
const WORK_MILLISECONDS = 180_000;
/** Number of VMs that run at the same time. */
const AT_ONCE = 2;
/** Longest life of the token. The picture takes minutes. */
const TOKEN_LIFE = '1h';

const PANEL = { width: 480, height: 190, gap: 16 } as const;
const PLOT = { left: 56, top: 30, right: 12, bottom: 46 } as const;
/** Units of Grafana's grid in one panel. All panels have the same size. */
const GRID = { x: 12, y: 8 } as const;
/** Most entries of a legend. Further ones do not fit below the plot. */
const LEGENDS = 4;
/** Place of a legend's square with its margins, and the mean width of a character, in pixels. */
const LEGEND_MARGIN = 20;
const CHARACTER_WIDTH = 6.7;
const COLOURS = ['#2da44e', '#0969da', '#bf8700', '#cf222e', '#8250df', '#57606a'];
const TEXT_COLOUR = '#6e7781';
const BYTES_PER_MEBIBYTE = 1024 ** 2;

interface Panel {
  readonly title: string;
  readonly gridPos: { readonly x: number; readonly y: number };
  readonly fieldConfig: { readonly defaults: { readonly unit: string } };
  readonly targets: readonly { readonly expr: string; readonly legendFormat: string }[];
}

/** Values by time in seconds since the epoch. */
interface Series {
  readonly legend: string;
  readonly points: readonly (readonly [number, number])[];
}

/** Types a line into a shell with the settings of the demo, and returns its output. */
type Type = (line: string) => Promise<string>;

/** Writes the picture. The shell knows `kubectl` and `berth`, and the demo runs in the folder `demo`. */
export async function pictureDashboard(type: Type, demo: string, file: string): Promise<void> {
  const { panels } = JSON.parse(await readFile(DASHBOARD, 'utf8')) as { panels: readonly Panel[] };
  const began = Date.now() / 1000;
  const { record, address } = await startPrometheus(type, demo);
  try {
    await work(type);
    const range = { start: began, end: Date.now() / 1000 };
    const drawn = await Promise.all(
      panels.map(async (panel) => drawPanel(panel, await read(address, panel, range), range)),
    );
    await writeFile(file, drawSheet(panels, drawn));
  } finally {
    await stopProcess(demo, record);
    await rm(join(demo, PROGRAM), { recursive: true, force: true });
    await type(`kubectl delete clusterrolebinding ${ACCOUNT} ${ACCOUNT}-hosts --ignore-not-found`);
    await type(`kubectl -n berth-system delete serviceaccount ${ACCOUNT} --ignore-not-found`);
    await type('berth imagecache remove demo-guest --all');
  }
}

async function startPrometheus(
  type: Type,
  demo: string,
): Promise<{ record: ProcessRecord; address: string }> {
  const account = `--serviceaccount=berth-system:${ACCOUNT}`;
  await type(`kubectl -n berth-system create serviceaccount ${ACCOUNT}`);
  await type(
    `kubectl create clusterrolebinding ${ACCOUNT} --clusterrole=berth-metrics-reader ${account} && kubectl create clusterrolebinding ${ACCOUNT}-hosts --clusterrole=berth-host-metrics-reader ${account}`,
  );
  const token = await type(`kubectl -n berth-system create token ${ACCOUNT} --duration=${TOKEN_LIFE}`);
  const operator = parse(await readFile(join(demo, 'operator.yaml'), 'utf8')) as {
    metrics: { address: string };
  };
  const node = JSON.parse(await type('kubectl get node demo-host -o json')) as Node;
  const host = node.status?.addresses?.find(({ type: kind }) => kind === 'InternalIP')?.address;
  const port = node.status?.daemonEndpoints?.kubeletEndpoint?.Port;
  const job = (name: string, target: string) => ({
    job_name: name,
    scheme: 'https',
    authorization: { credentials: token.trim() },
    // The operator has a certificate of its own in the demo, which a new start replaces.
    tls_config: { insecure_skip_verify: true },
    static_configs: [{ targets: [target], labels: { node: 'demo-host', pod: 'berth-operator' } }],
  });
  const config = join(demo, `${PROGRAM}.yaml`);
  await writeFile(
    config,
    stringify({
      global: { scrape_interval: `${INTERVAL_SECONDS}s` },
      scrape_configs: [
        job('berth-operator', operator.metrics.address),
        job('berth-hosts', `${host}:${port}`),
      ],
    }),
    { mode: 0o600 },
  );
  const address = `127.0.0.1:${await freePort()}`;
  const record = await startProcess(demo, {
    name: PROGRAM,
    file: PROGRAM,
    arguments: [
      `--config.file=${config}`,
      `--storage.tsdb.path=${join(demo, PROGRAM)}`,
      `--web.listen-address=${address}`,
    ],
  });
  await waitFor('both targets to answer', async () => {
    const answers = await query(address, 'query', { query: 'sum(up)' });
    return answers[0]?.points[0]?.[1] === 2;
  });
  return { record, address };
}

/** Makes VMs that come and go, one that waits, and an entry of the image cache. */
async function work(type: Type): Promise<void> {
  await type('berth imagecache add demo-guest --all');
  const end = performance.now() + WORK_MILLISECONDS;
  for (let round = 0; performance.now() < end; round += 1) {
    const names = Array.from({ length: AT_ONCE }, (_, index) => `busy-${round}-${index}`);
    const deploys = names.map((name) => `berth vm deploy ${name} --image demo-guest --cpu 1 --memory 256Mi`);
    await type(`${deploys.join(' & ')}; wait`);
    await type(`kubectl delete vms ${names.join(' ')}`);
  }
}

/** Returns the series of all expressions of a panel. @throws Error when Prometheus refuses an expression */
async function read(
  address: string,
  { targets }: Panel,
  { start, end }: { start: number; end: number },
): Promise<Series[]> {
  const found = await Promise.all(
    targets.map(async ({ expr, legendFormat }) => {
      const range = { query: expr, start: `${start}`, end: `${end}`, step: `${INTERVAL_SECONDS}` };
      return await query(address, 'query_range', range, legendFormat);
    }),
  );
  return found.flat();
}

async function query(
  address: string,
  path: 'query' | 'query_range',
  parameters: Record<string, string>,
  legend = '',
): Promise<Series[]> {
  const response = await fetch(
    `http://${address}/api/v1/${path}?${new URLSearchParams(parameters).toString()}`,
  );
  const { data, error } = (await response.json()) as {
    error?: string;
    data?: {
      result: {
        metric: Record<string, string>;
        values?: [number, string][];
        value?: [number, string];
      }[];
    };
  };
  if (data === undefined) {
    throw new Error(`${parameters['query']}: ${error}`);
  }
  return data.result.map(({ metric, values, value }) => ({
    legend: legend.replaceAll(/\{\{(\w+)\}\}/g, (_, label: string) => metric[label] ?? ''),
    points: (values ?? (value ? [value] : []))
      .map(([time, text]) => [time, Number(text)] as const)
      .filter(([, number]) => Number.isFinite(number)),
  }));
}

/** Returns the elements of a panel. Its corner is at 0, 0. */
function drawPanel(
  { title, fieldConfig }: Panel,
  series: readonly Series[],
  { start, end }: { start: number; end: number },
): string[] {
  const isBytes = fieldConfig.defaults.unit === 'bytes';
  const scaled = isBytes ? series.map(inMebibytes) : series;
  const shown = scaled
    .filter(({ points }) => points.length > 0)
    .toSorted((one, other) => peakOf(other) - peakOf(one));
  const top = roundUp(Math.max(...shown.map(peakOf), 0));
  const right = PANEL.width - PLOT.right;
  const bottom = PANEL.height - PLOT.bottom;
  const x = (time: number) => PLOT.left + ((right - PLOT.left) * (time - start)) / (end - start);
  const y = (value: number) => bottom - ((bottom - PLOT.top) * value) / top;
  const lines = shown.map(({ points }, index) => {
    const path = points.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join(' ');
    return `<polyline points="${path}" fill="none" stroke="${colourOf(index)}" stroke-width="1.8"/>`;
  });
  const scale = [0, top / 2, top].map(
    (value) =>
      `<line x1="${PLOT.left}" y1="${y(value)}" x2="${right}" y2="${y(value)}" stroke="${TEXT_COLOUR}" stroke-opacity="0.25"/><text x="${PLOT.left - 6}" y="${y(value) + 4}" text-anchor="end">${formatValue(value, fieldConfig.defaults.unit)}</text>`,
  );
  const minutes = ((end - start) / 60).toFixed(0);
  return [
    `<rect width="${PANEL.width}" height="${PANEL.height}" rx="6" fill="none" stroke="${TEXT_COLOUR}" stroke-opacity="0.4"/>`,
    `<text x="12" y="19" font-weight="bold">${escapeXML(title)}</text>`,
    ...scale,
    ...(shown.length === 0
      ? [
          `<text x="${(PLOT.left + right) / 2}" y="${(PLOT.top + bottom) / 2}" text-anchor="middle">No data</text>`,
        ]
      : lines),
    `<text x="${PLOT.left}" y="${bottom + 15}">−${minutes} min</text><text x="${right}" y="${bottom + 15}" text-anchor="end">now</text>`,
    ...drawLegend(shown),
  ];
}

function inMebibytes({ legend, points }: Series): Series {
  return { legend, points: points.map(([time, value]) => [time, value / BYTES_PER_MEBIBYTE] as const) };
}

function peakOf({ points }: Series): number {
  return Math.max(...points.map(([, value]) => value));
}

/** Draws the legend of the series with the highest values. A legend that is too long for its place is cut. */
function drawLegend(series: readonly Series[]): string[] {
  const y = PANEL.height - 12;
  const width = (PANEL.width - PLOT.left - PLOT.right) / Math.max(1, Math.min(series.length, LEGENDS));
  return series.slice(0, LEGENDS).map(({ legend }, index) => {
    const x = PLOT.left + index * width;
    const fit = Math.floor((width - LEGEND_MARGIN) / CHARACTER_WIDTH);
    const text = legend.length > fit ? `${legend.slice(0, fit - 1)}…` : legend;
    return `<rect x="${x}" y="${y - 9}" width="10" height="10" fill="${colourOf(index)}"/><text x="${x + 15}" y="${y}">${escapeXML(text)}</text>`;
  });
}

function drawSheet(panels: readonly Panel[], drawn: readonly string[][]): string {
  const at = ({ gridPos }: Panel) => ({
    x: PANEL.gap + (gridPos.x / GRID.x) * (PANEL.width + PANEL.gap),
    y: PANEL.gap + (gridPos.y / GRID.y) * (PANEL.height + PANEL.gap),
  });
  const width = Math.max(...panels.map((panel) => at(panel).x)) + PANEL.width + PANEL.gap;
  const height = Math.max(...panels.map((panel) => at(panel).y)) + PANEL.height + PANEL.gap;
  const groups = panels.map((panel, index) => {
    const { x, y } = at(panel);
    return `<g transform="translate(${x} ${y})">\n${drawn[index]?.join('\n')}\n</g>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" font-family="sans-serif" font-size="12" fill="${TEXT_COLOUR}">
<title>The dashboard of Berth</title>
${groups.join('\n')}
</svg>
`;
}

function colourOf(index: number): string {
  return COLOURS[index % COLOURS.length] ?? TEXT_COLOUR;
}

/** Returns the next of 1, 2, 5, 10, 20, 50 and so on. */
function roundUp(value: number): number {
  if (value <= 0) {
    return 1;
  }
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5].find((step) => step * power >= value) ?? 10) * power;
}

function formatValue(value: number, unit: string): string {
  if (unit === 'bytes') {
    return `${value} Mi`;
  }
  return `${Number(value.toPrecision(2))}${unit === 's' ? ' s' : ''}`;
}

/** Returns the text with the characters that XML reserves in their escaped form. */
export function escapeXML(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}
