/**
 * Schemas for kubeconform. Those of Kubernetes kinds come from the OpenAPI of a running API server. Those of other projects come
 * from the CRDs in their Go modules. All schemas refuse unknown fields.
 */
import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { parse } from 'yaml';
import type { KubeClient } from '../../kube/client.ts';

const MODULES = join(import.meta.dirname, '..', '..', 'hack', 'cluster', 'toolchain', 'schemas');
const OTHERS: Readonly<Record<string, readonly string[]>> = {
  'github.com/cert-manager/cert-manager': ['deploy/crds/cert-manager.io_certificates.yaml'],
  'github.com/prometheus-operator/prometheus-operator': [
    'servicemonitors',
    'prometheusrules',
    'scrapeconfigs',
  ].map((plural) => `example/prometheus-operator-crd/monitoring.coreos.com_${plural}.yaml`),
};
/** Time limit for the download of two modules of about 20 MB each, in milliseconds. */
const DOWNLOAD_MILLISECONDS = 300_000;

interface Schema {
  [key: string]: unknown;
}

interface GroupVersionKind {
  group: string;
  version: string;
  kind: string;
}

/** Value of kubeconform's `-schema-location`, relative to the folder that {@link writeSchemas} fills. */
export const SCHEMA_PATTERN = '{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json';

export async function writeSchemas(client: KubeClient, folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  const { paths } = JSON.parse(await textOf(client, '/openapi/v3')) as {
    paths: Record<string, { serverRelativeURL: string }>;
  };
  for (const [path, { serverRelativeURL }] of Object.entries(paths)) {
    if (/^apis?\/.*v\d/.test(path)) {
      await writeGroup(client, serverRelativeURL, folder);
    }
  }
  await writeOthers(folder);
}

/** Returns a document as text, because the API server sends these documents with the content type of text. */
async function textOf(client: KubeClient, url: string): Promise<string> {
  const { status, body } = await client.raw('GET', url);
  if (status !== 200) {
    throw new Error(`GET ${url}: ${status}`);
  }
  return typeof body === 'string' ? body : JSON.stringify(body);
}

async function writeGroup(client: KubeClient, url: string, folder: string): Promise<void> {
  const text = (await textOf(client, url)).replaceAll('#/components/schemas/', '#/definitions/');
  const { components } = JSON.parse(text) as { components?: { schemas?: Record<string, Schema> } };
  const definitions = components?.schemas ?? {};
  for (const schema of Object.values(definitions)) {
    makeStrict(schema);
  }
  for (const [name, schema] of Object.entries(definitions)) {
    const kinds = (schema['x-kubernetes-group-version-kind'] ?? []) as GroupVersionKind[];
    for (const kind of kinds.length === 1 ? kinds : []) {
      await writeSchema(folder, kind, { $ref: `#/definitions/${name}`, definitions });
    }
  }
}

async function writeSchema(
  folder: string,
  { group, version, kind }: GroupVersionKind,
  schema: Schema,
): Promise<void> {
  // In kubeconform, the group of `v1` has the name v1.
  const file = `${group || version}_${version}_${kind.toLowerCase()}.json`;
  await writeFile(join(folder, file), JSON.stringify(schema));
}

/** Makes a schema refuse unknown fields, as the API server does. */
function makeStrict(schema: Schema): void {
  const properties = schema['properties'] as Record<string, Schema> | undefined;
  const isOpen = 'additionalProperties' in schema || schema['x-kubernetes-preserve-unknown-fields'] === true;
  if (properties !== undefined && !isOpen) {
    schema['additionalProperties'] = false;
  }
  if (schema['x-kubernetes-int-or-string'] === true) {
    delete schema['type'];
  }
  const below = [...Object.values(properties ?? {}), schema['items'], schema['additionalProperties']];
  for (const child of below) {
    if (typeof child === 'object' && child !== null) {
      makeStrict(child as Schema);
    }
  }
}

interface Definition {
  spec: {
    group: string;
    names: { kind: string };
    versions: { name: string; schema: { openAPIV3Schema: Schema } }[];
  };
}

async function writeOthers(folder: string): Promise<void> {
  // A copy is used, because the go command may write files beside go.mod.
  const source = await mkdtemp(join(tmpdir(), 'berth-schemas-'));
  try {
    await cp(MODULES, source, { recursive: true });
    for (const [module, files] of Object.entries(OTHERS)) {
      const { stdout } = await promisify(execFile)('go', ['mod', 'download', '-json', module], {
        cwd: source,
        timeout: DOWNLOAD_MILLISECONDS,
      });
      const { Dir: directory } = JSON.parse(stdout) as { Dir: string };
      for (const file of files) {
        await writeDefinition(join(directory, file), folder);
      }
    }
  } finally {
    await rm(source, { recursive: true });
  }
}

async function writeDefinition(file: string, folder: string): Promise<void> {
  const { spec } = parse(await readFile(file, 'utf8')) as Definition;
  for (const { name, schema } of spec.versions) {
    const root = schema.openAPIV3Schema;
    makeStrict(root);
    // A definition leaves the schema of metadata to the API server.
    (root['properties'] as Record<string, Schema>)['metadata'] = { type: 'object' };
    await writeSchema(folder, { group: spec.group, version: name, kind: spec.names.kind }, root);
  }
}
