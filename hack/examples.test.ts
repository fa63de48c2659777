import { globSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { MACHINE_MEMORY_OVERHEAD_BYTES } from '../api/v1alpha1/machine.ts';
import { HOST_MARK } from '../api/v1alpha1/names.ts';
import { parseQuantity } from '../api/v1alpha1/quantity.ts';
import { parseConfig } from '../operator/config/config.ts';

const ROOT = join(import.meta.dirname, '..');

interface Size {
  cpu: number;
  memory: string;
}

async function read(file: string): Promise<string> {
  return await readFile(join(ROOT, file), 'utf8');
}

function expectFits(machine: Size, host: Size): void {
  expect(machine.cpu).toBeLessThanOrEqual(host.cpu);
  const requested = parseQuantity(machine.memory) + BigInt(MACHINE_MEMORY_OVERHEAD_BYTES);
  expect(requested).toBeLessThanOrEqual(parseQuantity(host.memory));
}

test('the first VM of README.md fits the share of its hosts', async () => {
  const readme = await read('README.md');
  const [, cpu = '', memory = ''] =
    /agent\.share\.cpu=(\d+) --set agent\.share\.memory=(\w+)/.exec(readme) ?? [];
  const [, example = ''] = /^kubectl apply -f (examples\/.*)$/m.exec(readme) ?? [];
  const objects = parseAllDocuments(await read(example)).map(
    (one) => one.toJS() as { kind: string; spec: Size },
  );
  const configs = objects.filter(({ kind }) => kind === 'VMConfig');
  expect(configs).toHaveLength(1);
  for (const { spec } of configs) {
    expectFits(spec, { cpu: Number(cpu), memory });
  }
});

test('a VM without sizes fits the share that a host of the chart has by default', async () => {
  const { agent } = parse(await read('charts/berth/values.yaml')) as { agent: { share: Size } };
  const { cpu, memory } = parseConfig({}, 'test').defaults;
  expectFits({ cpu, memory }, agent.share);
});

test.each(['README.md', 'docs/operate/install.md'])(
  'the agents of %s run on nodes with a label that no kubelet can set on its own Node',
  async (file) => {
    const text = await read(file);
    const [, label] = /^kubectl label node NODE ([^=\s]+)=true$/m.exec(text) ?? [];
    const [, selector] = /agent\.nodeSelector\.([^=\s]+)=true/.exec(text) ?? [];
    expect(selector?.replaceAll('\\.', '.')).toBe(label);
    // The admission plugin NodeRestriction protects only labels with this prefix.
    expect(label).toMatch(/^([\w.-]+\.)?node-restriction\.kubernetes\.io\//);
  },
);

test.each(['charts/berth/templates/monitoring.yaml', 'docs/reference/metrics.md'])(
  'Prometheus sends its token only to Nodes that cannot call themselves hosts (%s)',
  async (file) => {
    const selectors = (await read(file)).matchAll(/\{role: node, label: ([^}]+)\}/gi);
    expect([...selectors].map(([, label]) => label)).toEqual([HOST_MARK]);
  },
);

test('each example is applied by a test or the demo, which reaches its object', async () => {
  const users = globSync(['test/**/*.test.ts', 'hack/demo.ts'], { cwd: ROOT });
  const text = (await Promise.all(users.map(read))).join('\n');
  const isUsed = (name: string): boolean =>
    [`applyExample('${name}'`, `['${name}', `, `'${name}.yaml'`].some((use) => text.includes(use));
  const names = globSync('examples/*.yaml', { cwd: ROOT }).map((file) => basename(file, '.yaml'));
  expect(names.filter((name) => !isUsed(name))).toEqual([]);
});
