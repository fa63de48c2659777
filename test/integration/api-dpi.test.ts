import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parseAllDocuments } from 'yaml';
import type { Cluster } from '../../hack/cluster/index.ts';
import { sharedCluster } from '../support/cluster.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const suffix = randomBytes(4).toString('hex');
const namespace = `platform-dpi-${suffix}`;
/** A variant of the kinds, beside those of the cluster: the same schemas under other names. */
const group = `dpi-${suffix}.example.com`;

interface Definition {
  metadata: { name: string };
  spec: { group: string; names: { kind: string; plural: string } };
}

function renamed(definition: Definition): Definition {
  const { kind, plural } = definition.spec.names;
  const names = { kind: `Dpi${kind}`, plural: `dpi${plural}` };
  return {
    ...definition,
    metadata: { name: `${names.plural}.${group}` },
    spec: { ...definition.spec, group, names },
  };
}

let cluster: Cluster;
let variant: string;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  const args = [join(ROOT, 'hack', 'generate.ts'), '--display-dpi-maximum', '320'];
  const { stdout } = await promisify(execFile)(process.execPath, args);
  const definitions = parseAllDocuments(stdout).map((document) => document.toJS() as Definition);
  variant = definitions.map((definition) => JSON.stringify(renamed(definition))).join('\n');
  await cluster.kubectl(['apply', '-f', '-'], { input: variant });
  await cluster.kubectl(['wait', '--for=condition=Established', '--timeout=60s', '-f', '-'], {
    input: variant,
  });
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', namespace, '--wait=false']);
  await cluster.kubectl(['delete', '--wait=false', '-f', '-'], { input: variant });
});

describe('installed with a DPI maximum of 320', () => {
  async function create(kind: string, displayDPI: number) {
    const manifest = {
      apiVersion: `${group}/v1alpha1`,
      kind: `Dpi${kind}`,
      metadata: { name: 'x', namespace },
      spec: { image: 'any', displayDPI },
    };
    const args = ['create', '--validate=strict', '--dry-run=server', '-f', '-'];
    return await cluster.kubectl(args, { input: JSON.stringify(manifest), allowFailure: true });
  }

  it.for(['VM', 'VMConfig'])('a %s with 241 to 320 is accepted, 321 and 59 refused', async (kind) => {
    expect(await create(kind, 241)).toMatchObject({ code: 0 });
    expect(await create(kind, 320)).toMatchObject({ code: 0 });
    for (const refused of [321, 59]) {
      const { code, stderr } = await create(kind, refused);
      expect(code).not.toBe(0);
      expect(stderr).toContain('spec.displayDPI');
      expect(stderr).toContain('from 60 to 320');
    }
  });
});
