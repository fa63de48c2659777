/** Tests of the chart's values: each value is changed once, and once has a wrong type. */
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { parse } from 'yaml';
import { valuesJsonSchema, valuesSchema } from '../../hack/values/schema.ts';
import { resolveChartTools } from '../../hack/cluster/toolchain/toolchain.ts';
import { CHART, EVERYTHING, helm, type Outcome, reading, run, template } from '../support/chart.ts';
import { SCHEMA_PATTERN, writeSchemas } from '../support/chartschemas.ts';
import { sharedCluster } from '../support/cluster.ts';
import { type Change, changes, merged, nested } from '../fixtures/valuechanges.ts';

/** Number of renderings at the same time. helm uses one thread most of the time. */
const PARALLEL = 2;
/** Time limit. Three hundred renderings take 40 s alone, and ten times as long beside other tests on a busy machine. */
const RENDERING_MILLISECONDS = 600_000;

let folder: string;
let defaults: unknown;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-chart-'));
  await writeSchemas((await sharedCluster()).client(), join(folder, 'schemas'));
  defaults = parse(await readFile(join(CHART, 'values.yaml'), 'utf8'));
});

afterAll(async () => {
  await rm(folder, { recursive: true });
});

async function kubeconform(paths: readonly string[]): Promise<string> {
  const schemas = join(folder, 'schemas');
  const { kubeconform } = await resolveChartTools();
  const args = ['-strict', '-summary', '-n', String(PARALLEL), '-schema-location'];
  const { stdout, stderr } = await run(kubeconform, [...args, join(schemas, SCHEMA_PATTERN), ...paths]);
  return `${stdout}${stderr}`;
}

test('helm lint finds no fault', async () => {
  const outcome = await helm(['lint', '--strict', '--quiet', CHART]);
  expect(outcome).toMatchObject({ code: 0, stdout: '' });
});

test('the documented values are valid, and their keys are those of the schema', () => {
  expect(() => valuesSchema.parse(defaults)).not.toThrow();
  const undocumented = changes(valuesJsonSchema(), defaults)
    .filter(({ path }) => !path.includes('config'))
    .filter(({ path }) => {
      let value = defaults as Record<string, unknown> | undefined;
      for (const key of path) {
        value = value?.[key] as Record<string, unknown> | undefined;
      }
      return value === undefined;
    });
  expect(undocumented).toEqual([]);
});

/** Returns other values that a change of this value needs: before the change, or together with it. */
function besides({ path }: Change): { before?: object; after?: object } {
  switch (path.join('.')) {
    case 'certificate.secretName':
      return { before: { certificate: { certManager: { enabled: false } } } };
    case 'agent.guestsMayReachCluster':
      return { after: { agent: { clusterCIDRs: [] } } };
    case 'agent.join':
      return { after: { agent: { namespace: 'platform-ci' } } };
    case 'agent.namespace':
      return { before: { agent: { join: 'ServiceAccount', namespace: 'platform-default' } } };
    case 'config.imageStorage.folder':
      return { before: { agent: { config: { images: { storageFolder: '/srv/storage' } } } } };
    case 'config.imageStorage.keepSeconds':
      return { before: { config: { imageStorage: { registry: { prefix: 'registry.example/berth' } } } } };
    case 'uninstall.enabled':
      return { before: { uninstall: { drain: false } } };
    case 'config.priorityClassName':
      return { before: { priorityClass: { create: false } } };
    default:
      return {};
  }
}

/** Outputs by values, because few different bases are rendered for many changes. */
const rendered = new Map<string, Promise<Outcome>>();

function renderedOnce(values: object, options: { args?: string[] }): Promise<Outcome> {
  const key = JSON.stringify([values, options]);
  const known = rendered.get(key) ?? template(values, options);
  rendered.set(key, known);
  return known;
}

/** Removes texts that differ between renderings without a change of values: checksums, and Secrets with random content. */
function comparable(text: string): string {
  return text.replaceAll(/token(-secret)?: .*/g, '').replaceAll(/checksum\/config: .*/g, '');
}

test(
  'each value, changed once, gives manifests that the API server would accept, and another result',
  async () => {
    const cluster = await sharedCluster();
    const all = changes(valuesJsonSchema(), merged(defaults, EVERYTHING));
    expect(all.length).toBeGreaterThan(100);
    const files: string[] = [];
    const faults: string[] = [];
    const queue = [...all];
    async function work(): Promise<void> {
      for (let change = queue.shift(); change !== undefined; change = queue.shift()) {
        const name = change.path.join('.');
        const other = besides(change);
        // The hook is rendered if helm reads a cluster. The cluster does not know kinds of other projects.
        const isOfHook = change.path[0] === 'uninstall';
        const options = isOfHook ? reading(cluster) : {};
        const whole = isOfHook ? { uninstall: EVERYTHING.uninstall } : EVERYTHING;
        const base = merged(whole, other.before ?? {}) as object;
        const before = await renderedOnce(base, options);
        const changed = merged(merged(base, other.after ?? {}), nested(change.path, change.value));
        const after = await template(changed as object, options);
        if (after.code !== 0 || before.code !== 0) {
          faults.push(`${name}: ${after.stderr}${before.stderr}`);
        } else if (comparable(before.stdout) === comparable(after.stdout)) {
          faults.push(`${name}: changes nothing`);
        }
        const file = join(folder, `${name}.yaml`);
        await writeFile(file, after.stdout);
        files.push(file);
      }
    }
    await Promise.all(Array.from({ length: PARALLEL }, work));
    expect(faults).toEqual([]);
    const plain = join(folder, 'defaults.yaml');
    await writeFile(plain, (await template()).stdout);
    expect(await kubeconform([plain, ...files])).toMatch(/Invalid: 0, Errors: 0, Skipped: 0\n$/);
    const wrong = join(folder, 'wrong.yaml');
    await writeFile(wrong, (await readFile(plain, 'utf8')).replace('  replicas: 2', '  replica: 2'));
    expect(await kubeconform([wrong])).toMatch(/Deployment berth-operator is invalid.*replica/);
  },
  RENDERING_MILLISECONDS,
);

test('each profile gives manifests that the API server would accept', async () => {
  const profiles = (await readdir(join(CHART, 'profiles'))).map((name) => join('profiles', name));
  const files: string[] = [];
  for (const profile of ['hardened.yaml', ...profiles]) {
    // The profiles of some providers turn the agent off.
    const args = ['--values', join(CHART, profile), '--set', 'agent.enabled=true'];
    const { code, stdout, stderr } = await template({ agent: EVERYTHING.agent }, { args });
    expect({ profile, code, stderr }).toMatchObject({ code: 0 });
    const file = join(folder, `profile-${basename(profile)}`);
    await writeFile(file, stdout);
    files.push(file);
  }
  expect(files.length).toBeGreaterThan(1);
  expect(await kubeconform(files)).toMatch(/Invalid: 0, Errors: 0, Skipped: 0\n$/);
});

test('a DPI maximum that no display has is refused, also without the schema', async () => {
  const { stderr } = await template({ displayDPIMaximum: 300 }, { args: ['--skip-schema-validation'] });
  expect(stderr).toContain('displayDPIMaximum must be 240 or 320, not 300');
});

const WRONG: Readonly<Record<string, unknown>> = {
  string: { not: 'a text' },
  boolean: 'yes',
  integer: 'many',
  number: 'many',
  array: 'a list',
  object: 'a map',
  // The wrong type is tried as the driver of a network, and elsewhere.
  union: { driver: 'token-ring' },
};

test('the schema refuses a wrong type', async () => {
  const all = changes(valuesJsonSchema(), defaults);
  // One rendering has all wrong values, because helm lists every fault.
  let values: unknown = {};
  for (const { path, type } of all) {
    values = merged(values, nested(path, WRONG[type]));
  }
  const { code, stderr } = await template(values as object);
  expect(code).not.toBe(0);
  const missed = all.map(({ path }) => `/${path.join('/')}'`).filter((place) => !stderr.includes(place));
  expect(missed).toEqual([]);
});
