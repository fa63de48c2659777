/** Makes the tables of docs/reference/metrics.md from the metrics that the code declares. Therefore no metric is missing in them. */
import { readFile } from 'node:fs/promises';
import { globSync } from 'node:fs';
import { join } from 'node:path';
import { between, table } from './table.ts';

const ROOT = join(import.meta.dirname, '..', '..');

interface Metric {
  name: string;
  type: string;
  help: string;
  labels: string[];
}

const DECLARATION =
  /new (Counter|Gauge|Histogram)(?:<[^>]*>)?\(\{\s*name: '([^']+)',\s*help:\s*'([^']+)',(?:\s*labelNames(?:: \[([^\]]*)\])?(?: as const)?,)?/g;
/** Constant with labels that several declarations below it share. */
const SHARED_LABELS = /const labelNames = \[([^\]]*)\]/g;

/** Reads the metrics that the files of a folder declare. @throws Error for a declaration that is written in another way. */
async function metricsOf(folder: string): Promise<Metric[]> {
  const files = globSync(`${folder}/**/*.ts`, { cwd: ROOT }).filter((file) => !file.endsWith('.test.ts'));
  const found: Metric[] = [];
  for (const file of files.toSorted()) {
    const text = await readFile(join(ROOT, file), 'utf8');
    const metrics = [...text.matchAll(DECLARATION)].map((match) => metricOf(text, match));
    const declared = text.match(/new (?:Counter|Gauge|Histogram)[<(]/g)?.length ?? 0;
    if (metrics.length !== declared) {
      throw new Error(
        `${file}: ${declared} metrics, of which ${metrics.length} begin with name, help, labelNames`,
      );
    }
    found.push(...metrics);
  }
  return found.toSorted((a, b) => a.name.localeCompare(b.name));
}

function metricOf(text: string, match: RegExpExecArray): Metric {
  const [whole, type = '', name = '', help = '', own] = match;
  const shared = [...text.slice(0, match.index).matchAll(SHARED_LABELS)].at(-1)?.[1] ?? '';
  const labels = own ?? (whole.trimEnd().endsWith('labelNames,') ? shared : '');
  return {
    name,
    type: type.toLowerCase(),
    help,
    labels: [...labels.matchAll(/'([^']+)'/g)].map(([, one]) => one ?? ''),
  };
}

function metricsTable(metrics: readonly Metric[]): string {
  const rows = metrics.map(({ name, type, help, labels }) => [
    `\`${name}\``,
    type,
    labels.map((one) => `\`${one}\``).join(', '),
    help.replace(/\.$/, ''),
  ]);
  return table(['metric', 'type', 'labels', 'description'], rows);
}

/** Returns the page with current tables. @throws Error for a declaration that is written in another way. */
export async function metricsPage(current: string): Promise<string> {
  let text = current;
  for (const [name, folder] of [
    ['operator', 'operator'],
    ['agent', 'agent'],
    ['server', 'server'],
    ['both', 'kube'],
  ] as const) {
    text = between(text, name, metricsTable(await metricsOf(folder)));
  }
  return text;
}
