/** Values of the chart: every one changed once, contradictory ones, ones of a wrong type. */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { valuesJsonSchema, valuesSchema } from '../../hack/values.ts';
import { resolveChartTools } from '../cluster/toolchain/toolchain.ts';
import { CHART, EVERYTHING, helm, type Outcome, run, template } from '../support/chart.ts';
import { SCHEMA_PATTERN, writeSchemas } from '../support/chartschemas.ts';
import { sharedCluster } from '../support/cluster.ts';
import { type Change, changes, merged, nested } from '../support/valuechanges.ts';

/** Renderings at once: helm is one thread for the most part. */
const PARALLEL = 2;

let folder: string;
let defaults: unknown;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-chart-'));
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

test('helm lint has nothing to say', async () => {
  const outcome = await helm(['lint', '--strict', '--quiet', CHART]);
  expect(outcome).toMatchObject({ code: 0, stdout: '' });
});

test('the documented values are those of the schema, and valid', () => {
  expect(() => valuesSchema.parse(defaults)).not.toThrow();
  const undocumented = changes(valuesJsonSchema(), defaults)
    .filter(({ path }) => !path.includes('config'))
    .filter(({ path }) => {
      let value = defaults as Record<string, unknown> | undefined;
      for (const key of path) value = value?.[key] as Record<string, unknown> | undefined;
      return value === undefined;
    });
  expect(undocumented).toEqual([]);
});

/** What else must be said when one value is changed, for it to make sense: before the change too, or with it. */
function besides({ path }: Change): { before?: object; after?: object } {
  switch (path.join('.')) {
    case 'certificate.secretName':
      return { before: { certificate: { certManager: { enabled: false } } } };
    case 'agent.guestsMayReachCluster':
      return { after: { agent: { clusterCIDRs: [] } } };
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

/** Few bases are rendered for many changes. */
const rendered = new Map<string, Promise<Outcome>>();

function renderedOnce(values: object): Promise<Outcome> {
  const key = JSON.stringify(values);
  const known = rendered.get(key) ?? template(values);
  rendered.set(key, known);
  return known;
}

/** Annotations that change with everything, and secrets that are new each time, tell nothing of a value. */
function comparable(text: string): string {
  return text.replaceAll(/token(-secret)?: .*/g, '').replaceAll(/checksum\/config: .*/g, '');
}

test('every value changed once: manifests that the API server would take, and another result', async () => {
  const all = changes(valuesJsonSchema(), merged(defaults, EVERYTHING));
  expect(all.length).toBeGreaterThan(100);
  const files: string[] = [];
  const faults: string[] = [];
  const queue = [...all];
  async function work(): Promise<void> {
    for (let change = queue.shift(); change !== undefined; change = queue.shift()) {
      const name = change.path.join('.');
      const other = besides(change);
      const base = merged(EVERYTHING, other.before ?? {}) as object;
      const before = await renderedOnce(base);
      const changed = merged(merged(base, other.after ?? {}), nested(change.path, change.value));
      const after = await template(changed as object);
      if (after.code !== 0 || before.code !== 0) faults.push(`${name}: ${after.stderr}${before.stderr}`);
      else if (comparable(before.stdout) === comparable(after.stdout))
        faults.push(`${name}: changes nothing`);
      const file = join(folder, `${name}.yaml`);
      await writeFile(file, after.stdout);
      files.push(file);
    }
  }
  await Promise.all(Array.from({ length: PARALLEL }, work));
  expect(faults).toEqual([]);
  await writeSchemas((await sharedCluster()).client(), join(folder, 'schemas'));
  const plain = join(folder, 'defaults.yaml');
  await writeFile(plain, (await template()).stdout);
  expect(await kubeconform([plain, ...files])).toMatch(/Invalid: 0, Errors: 0, Skipped: 0\n$/);
  const wrong = join(folder, 'wrong.yaml');
  await writeFile(wrong, (await readFile(plain, 'utf8')).replace('  replicas: 2', '  replica: 2'));
  expect(await kubeconform([wrong])).toMatch(/Deployment berth-operator is invalid.*replica/);
});

describe('values that contradict each other are refused by their names', () => {
  test.each([
    [
      { agent: { enabled: true } },
      ['agent.enabled', 'agent.nodeSelector', 'agent.clusterCIDRs', 'agent.guestsMayReachCluster=true'],
    ],
    [
      merged(EVERYTHING, { agent: { guestsMayReachCluster: true } }) as object,
      ['agent.clusterCIDRs', 'agent.guestsMayReachCluster'],
    ],
    [
      merged(EVERYTHING, { agent: { config: { network: { clusterCIDRs: ['10.244.0.0/16'] } } } }) as object,
      ['agent.config.network.clusterCIDRs', 'agent.clusterCIDRs', 'agent.config.images.registries'],
    ],
    [
      merged(EVERYTHING, { agent: { config: { kubelet: { port: 0 } } } }) as object,
      ['agent.config.kubelet.port'],
    ],
    [
      { certificate: { secretName: 'x', certManager: { enabled: true, issuerRef: { name: 'y' } } } },
      ['certificate.secretName', 'certificate.certManager.enabled'],
    ],
    [
      { certificate: { certManager: { enabled: true } } },
      ['certificate.certManager.enabled', 'certificate.certManager.issuerRef.name'],
    ],
    [
      { config: { imageStorage: { registry: { prefix: 'registry.example' }, folder: true } } },
      ['config.imageStorage.registry', 'config.imageStorage.folder'],
    ],
    [{ config: { imageStorage: {} } }, ['config.imageStorage.registry', 'config.imageStorage.folder']],
    [
      merged(EVERYTHING, { config: { imageStorage: { folder: true } } }) as object,
      ['config.imageStorage.folder', 'agent.config.images.storageFolder'],
    ],
    [
      { priorityClass: { create: true }, config: { priorityClassName: 'other' } },
      ['priorityClass.create', 'config.priorityClassName'],
    ],
    [
      { priorityClass: { create: true, name: 'system-mine' } },
      ['priorityClass.create', 'priorityClass.name'],
    ],
    [
      { config: { leaderElection: { leaseDurationSeconds: 5 } } },
      ['config.leaderElection.leaseDurationSeconds', 'config.leaderElection.renewDeadlineSeconds'],
    ],
    [
      { config: { leaderElection: { retryPeriodSeconds: 6 } } },
      ['config.leaderElection.renewDeadlineSeconds', 'config.leaderElection.retryPeriodSeconds'],
    ],
    [
      merged(EVERYTHING, { agent: { resources: { limits: { memory: '8447Mi' } } } }) as object,
      [
        'agent.resources.limits.memory (8447Mi)',
        'agent.share.memory (8Gi)',
        'agent.resources.requests.memory (256Mi)',
      ],
    ],
    [
      merged(EVERYTHING, { agent: { resources: { limits: { cpu: '4099m' } } } }) as object,
      ['agent.resources.limits.cpu (4099m)', 'agent.share.cpu (4)', 'agent.resources.requests.cpu (100m)'],
    ],
    [{ uninstall: { enabled: false, drain: true } }, ['uninstall.drain', 'uninstall.enabled']],
    [{ uninstall: { enabled: false }, crds: { keep: false } }, ['crds.keep', 'uninstall.enabled']],
    [{ namespaces: { default: 'berth-system' } }, ['namespaces.default']],
  ])('%j', async (values, names) => {
    const { code, stderr } = await template(values);
    expect(code).not.toBe(0);
    for (const name of names) expect(stderr).toContain(name);
  });

  test.each([
    [{ limits: { cpu: '4100m', memory: '8448Mi' } }],
    [{ limits: { cpu: 4.1, memory: 8_858_370_048 } }],
    [{ limits: { cpu: 64 } }],
    [{ requests: null, limits: { cpu: '5', memory: '9G' } }],
    [{ limits: null }],
  ])('limits of the agent that hold what it and its machines ask for are taken: %j', async (resources) => {
    const { code, stderr } = await template(merged(EVERYTHING, { agent: { resources } }) as object);
    expect({ code, stderr }).toMatchObject({ code: 0 });
  });

  test('all at once, so that one sees every mistake', async () => {
    const { stderr } = await template({
      agent: { enabled: true },
      uninstall: { enabled: false, drain: true },
    });
    expect(stderr).toContain('agent.nodeSelector');
    expect(stderr).toContain('uninstall.drain');
  });

  test('a DPI maximum that no display has, also where the schema is not asked', async () => {
    const refused = await template({ displayDPIMaximum: 300 });
    expect(refused.stderr).toContain('displayDPIMaximum');
    const { stderr } = await template({ displayDPIMaximum: 300 }, { args: ['--skip-schema-validation'] });
    expect(stderr).toContain('displayDPIMaximum must be 240 or 320, not 300');
  });
});

test.each(['name', 'kind', 'group'])('an issuer without its %s is refused', async (key) => {
  const issuerRef = { ...EVERYTHING.certificate.certManager.issuerRef, [key]: '' };
  const { code, stderr } = await template({ certificate: { certManager: { enabled: true, issuerRef } } });
  expect(stderr).toMatch(new RegExp(`certificate[./]certManager[./]issuerRef[./]${key}`));
  expect(code).not.toBe(0);
});

test.each([['10.0.0.0/33'], ['fd00::/129'], ['10.0.0.1'], ['api.example']])(
  'an API server that is no range of addresses is refused: %s',
  async (cidr) => {
    const { code, stderr } = await template({ networkPolicy: { apiServer: { cidrs: [cidr] } } });
    expect(stderr).toContain("'/networkPolicy/apiServer/cidrs/0'");
    expect(code).not.toBe(0);
  },
);

test.each([[0], ['0%'], ['101%'], ['ten']])(
  'an upgrade of hosts that could never go on, or has no sense, is refused: %j',
  async (maxUnavailable) => {
    const { code, stderr } = await template(merged(EVERYTHING, { agent: { maxUnavailable } }) as object);
    expect(stderr).toContain("'/agent/maxUnavailable'");
    expect(code).not.toBe(0);
  },
);

const WRONG: Readonly<Record<string, unknown>> = {
  string: { not: 'a text' },
  boolean: 'yes',
  integer: 'many',
  number: 'many',
  array: 'a list',
  object: 'a map',
  // As the driver of a network, and anywhere else.
  union: { driver: 'token-ring' },
};

test('a wrong type is refused by the schema, and so is a value that does not exist', async () => {
  const all = changes(valuesJsonSchema(), defaults);
  // All at once: helm lists every one.
  let values: unknown = {};
  for (const { path, type } of all) values = merged(values, nested(path, WRONG[type]));
  const { code, stderr } = await template(values as object);
  expect(code).not.toBe(0);
  const missed = all.map(({ path }) => `/${path.join('/')}'`).filter((place) => !stderr.includes(place));
  expect(missed).toEqual([]);
  const typo = await template({ operator: { replcas: 3 } });
  expect(typo.stderr).toMatch(/operator.*replcas/s);
});
