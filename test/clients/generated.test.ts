/**
 * Clients that generators make from the OpenAPI document, in Go and in Python. Each is compiled, and deploys, lists and deletes a VM on a
 * simulated host. `make clients` runs this file, and `make test` does not, because its first run compiles a generator. In `make test`,
 * server/http/openapi.test.ts holds the properties of the document on which the generators depend.
 */
import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { run } from '../../base/exec.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { pythonWith } from '../../hack/python/install.ts';
import { waitFor } from '../../hack/wait.ts';
import { IMAGE } from '../fixtures/vms.ts';
import { accountToken } from '../support/members.ts';
import { HTTPClient } from '../wires/httpapi.ts';

const DOCUMENT = join(import.meta.dirname, '../../docs/reference/openapi.json');
const NAMESPACE = 'platform-default';
/** Time limit of a program. The first run downloads and compiles a generator. */
const PROGRAM_MILLISECONDS = 300_000;

let folder: string;
let cluster: Cluster;
let operator: OperatorProcess;
let server: ServerProcess;
let environment: NodeJS.ProcessEnv;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-clients-'));
  cluster = await startCluster({ name: `clients-${process.pid}`, hosts: 1 });
  operator = await cluster.startOperator();
  server = await cluster.startServer();
  const token = await accountToken(
    cluster,
    { namespace: NAMESPACE, name: 'dev' },
    { role: 'berth-role-dev' },
  );
  const authority = join(folder, 'authority.crt');
  await writeFile(authority, server.authority);
  environment = { ...process.env, URL: server.url, TOKEN: token, AUTHORITY: authority, NAMESPACE, IMAGE };
  const client = new HTTPClient(server);
  await waitFor(
    'the rights',
    async () => (await client.call(`/api/v1/namespaces/${NAMESPACE}/vms`, { token })).status === 200,
  );
  await client.close();
});

afterAll(async () => {
  await server?.process.stop();
  await operator?.stop();
  await cluster?.stop();
  await rm(folder, { recursive: true, force: true });
});

/** Runs a program in the folder, with the address and the token of the server. Returns its output. */
async function runIn(
  name: string,
  program: string,
  parameters: string[],
  variables: Readonly<Record<string, string>> = {},
): Promise<string> {
  return await run(program, parameters, {
    folder: join(folder, name),
    environment: { ...environment, ...variables },
    timeoutMilliseconds: PROGRAM_MILLISECONDS,
  });
}

it('in Go, by oapi-codegen', async () => {
  await mkdir(join(folder, 'go'));
  for (const file of ['go.mod', 'go.sum', 'main.go']) {
    await cp(join(import.meta.dirname, file), join(folder, 'go', file));
  }
  const options = ['-generate', 'types,client', '-package', 'main', '-o', 'client.go', DOCUMENT];
  await runIn('go', 'go', ['tool', 'oapi-codegen', ...options]);
  expect(await runIn('go', 'go', ['run', '.'])).toBe('generated-go Running, then 404\n');
});

it('in Python, by openapi-python-client', async () => {
  const python = await pythonWith('openapi-python-client');
  await mkdir(join(folder, 'python'));
  await cp(join(import.meta.dirname, 'use.py'), join(folder, 'python', 'use.py'));
  // This generator knows no content type of pictures, and takes them as bytes.
  const settings = { content_type_overrides: { 'image/png': 'application/octet-stream' } };
  await writeFile(join(folder, 'python', 'settings.json'), JSON.stringify(settings));
  const generate = ['-m', 'openapi_python_client', 'generate', '--path', DOCUMENT];
  const said = await runIn(
    'python',
    python.program,
    [
      ...generate,
      '--config',
      'settings.json',
      '--output-path',
      'berth',
      '--meta',
      'none',
      '--fail-on-warning',
    ],
    { ...python.environment, PATH: `${python.environment['PYTHONPATH']}/bin:${environment['PATH']}` },
  );
  expect(said).not.toMatch(/warning/i);
  expect(await runIn('python', python.program, ['use.py'], python.environment)).toBe(
    'generated-python Running, then 404\n',
  );
});
