/** Tests of the alerts: promtool's own tests, and that each alert has a runbook. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { parse } from 'yaml';
import { EVERYTHING, find, manifests, run } from '../support/chart.ts';

const ROOT = join(import.meta.dirname, '..', '..');

interface Rules {
  groups: { rules: { alert: string; expr: string; annotations: Record<string, string> }[] }[];
}

interface Tests {
  tests: { alert_rule_test: { alertname: string; exp_alerts: unknown[] }[] }[];
}

let folder: string;
let rules: Rules;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'berth-rules-'));
  rules = await rulesOf(EVERYTHING);
  writeFileSync(join(folder, 'rules.yaml'), JSON.stringify(rules));
});

afterAll(() => {
  rmSync(folder, { recursive: true });
});

async function rulesOf(values: object): Promise<Rules> {
  return find(await manifests(values), 'PrometheusRule', 'berth')['spec'] as Rules;
}

function alerts({ groups }: Rules = rules): Rules['groups'][number]['rules'] {
  return groups.flatMap((group) => group.rules);
}

test('promtool finds nothing wrong', async () => {
  const { code, stdout, stderr } = await run('promtool', ['check', 'rules', join(folder, 'rules.yaml')]);
  expect(`${stdout}${stderr}`).toMatch(/SUCCESS: 12 rules found/);
  expect(code).toBe(0);
});

test('each alert fires when it should, and not earlier', async () => {
  const file = join(folder, 'rules.test.yaml');
  writeFileSync(file, readFileSync(join(import.meta.dirname, 'rules.test.yaml'), 'utf8'));
  const { code, stdout, stderr } = await run('promtool', ['test', 'rules', file]);
  expect(`${stdout}${stderr}`).toContain('SUCCESS');
  expect(code).toBe(0);
  const { tests } = parse(readFileSync(file, 'utf8')) as Tests;
  const looks = tests.flatMap(({ alert_rule_test: all }) => all);
  for (const { alert } of alerts()) {
    const counts = looks.filter(({ alertname }) => alertname === alert).map((one) => one.exp_alerts.length);
    expect(Math.max(...counts), `${alert} fires in a test`).toBeGreaterThan(0);
    expect(Math.min(...counts), `${alert} does not fire yet in a test`).toBe(0);
  }
});

test('each alert has a runbook, and its address if one is set', async () => {
  const text = readFileSync(join(ROOT, 'docs', 'operate', 'runbooks.md'), 'utf8');
  const anchors = text
    .split('\n')
    .filter((line) => line.startsWith('## '))
    .map((line) => line.slice('## '.length).toLowerCase());
  const runbooks = 'https://wiki.example/runbooks.md';
  const linked = alerts(await rulesOf({ metrics: { rules: { enabled: true, runbooks } } }));
  const addresses = linked.map(({ annotations }) => annotations['runbook_url']);
  expect(addresses).toEqual(anchors.map((anchor) => `${runbooks}#${anchor}`));
  const withoutAddress = linked.map((alert) => {
    const { runbook_url: _, ...annotations } = alert.annotations;
    return { ...alert, annotations };
  });
  expect(alerts()).toEqual(withoutAddress);
});

test('alerts and dashboard use metrics that exist', async () => {
  const documented = readFileSync(join(ROOT, 'docs', 'reference', 'metrics.md'), 'utf8');
  const rendered = await manifests(EVERYTHING);
  const dashboard = find(rendered, 'ConfigMap', 'berth-dashboard')['data']['berth.json'] as string;
  const board = JSON.parse(dashboard) as { panels: { targets: { expr: string }[] }[] };
  const asked = [
    ...alerts().map(({ expr }) => expr),
    ...board.panels.flatMap(({ targets }) => targets.map(({ expr }) => expr)),
  ].join('\n');
  const names = new Set(asked.match(/\b(berth|controller_runtime|leader)_[a-z_]+\b/g));
  expect(names.size).toBeGreaterThan(8);
  for (const name of names) {
    expect(documented).toContain(`\`${name.replace(/_(bucket|count|sum)$/, '')}\``);
  }
});

test('promtool can read the file of the chart unchanged', async () => {
  const file = join(ROOT, 'charts', 'berth', 'files', 'monitoring', 'rules.yaml');
  expect((await run('promtool', ['check', 'rules', file])).code).toBe(0);
  expect((parse(readFileSync(file, 'utf8')) as Rules).groups).toHaveLength(1);
});
