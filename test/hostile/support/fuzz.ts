/** Sends generated requests to every operation of the OpenAPI document, with schemathesis. */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ProgramError, start, type StartOptions } from '../../../base/exec.ts';
import type { ServerProcess } from '../../../hack/cluster/program.ts';
import { pythonWith } from '../../../hack/python/install.ts';
import { HOSTILE_SEED } from './attempts.ts';

export const DOCUMENT = join(import.meta.dirname, '..', '..', '..', 'docs', 'reference', 'openapi.json');
/** Time limit of one run at full scale. */
const RUN_MILLISECONDS = 3_600_000;
/** Time after which a request is an error. No request waits for a VM, but a busy machine can stand still for some seconds. */
const REQUEST_SECONDS = 60;
/** Characters that are kept from the end of the output. Failures come last. */
const OUTPUT_CHARACTERS = 20_000;

/** Operations whose documented answer is 501, because the server has no image storage. */
const NOT_IMPLEMENTED = [
  'postVmsByNameSave',
  'postVmsByNameCommit',
  'postVmsByNamePush',
  'postUploadImage',
  'getImagesByNameDownload',
  'postRemoteimagesByNamePull',
  'postUploadIso',
  'getIsosByNameDownload',
  'postRemoteisosByNamePull',
];

/** Values of parameters of paths that lead to existing objects. Most generated requests have one of them. */
interface Existing {
  readonly namespace: string;
  readonly name: readonly string[];
  readonly node: readonly string[];
  readonly image: readonly string[];
  readonly binding: readonly string[];
}

/** Options of generated requests. Some of them break the document in one place, and each bound is tried. */
export interface FuzzOptions {
  readonly token: string;
  /** Number of generated requests of each operation. */
  readonly examples: number;
  readonly existing: Existing;
}

/** Report of schemathesis. */
export interface FuzzReport {
  readonly complete: boolean;
  readonly operations: { readonly total: number; readonly tested: number };
  readonly test_cases: { readonly generated: number; readonly errored: number };
  /** Answers with a status that the operation may not have. */
  readonly failures: readonly { readonly title: string; readonly operations: readonly string[] }[];
  readonly errors: readonly { readonly title: string }[];
}

export interface FuzzResult {
  readonly report: FuzzReport;
  /** End of the output of schemathesis, with each failure in words. */
  readonly output: string;
}

/** Sends requests as the caller with this token. @throws Error with the output of schemathesis when it has no report. */
export async function fuzz(server: ServerProcess, fuzzing: FuzzOptions): Promise<FuzzResult> {
  const { program, environment } = await pythonWith('schemathesis');
  const folder = await mkdtemp(join(tmpdir(), 'berth-fuzz-'));
  const authority = join(folder, 'authority.crt');
  const config = join(folder, 'schemathesis.toml');
  const report = join(folder, 'report.json');
  try {
    await writeFile(authority, server.authority);
    await writeFile(config, configOf(fuzzing, authority));
    const options = ['--config-file', config, 'run', DOCUMENT, '--url', server.url, '--no-color'];
    const reports = ['--report', 'json', '--report-json-path', report];
    const output = await toTheEnd(program, ['-m', 'schemathesis.cli', ...options, ...reports], {
      name: 'schemathesis',
      folder,
      environment: { ...process.env, ...environment, BERTH_TOKEN: fuzzing.token },
    });
    return { report: await readReport(report, output), output };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Resolves with the end of the output, also after exit code 1, which means that there are failures. */
async function toTheEnd(
  program: string,
  parameters: readonly string[],
  options: StartOptions,
): Promise<string> {
  const running = start(program, parameters, { ...options, timeoutMilliseconds: RUN_MILLISECONDS });
  let output = '';
  running.output.setEncoding('utf8').on('data', (text: string) => {
    output = `${output}${text}`.slice(-OUTPUT_CHARACTERS);
  });
  try {
    await running.ended;
  } catch (error) {
    if (!(error instanceof ProgramError) || error.exitCode !== 1) {
      throw error;
    }
    output += error.lastOutput;
  }
  return output;
}

async function readReport(path: string, output: string): Promise<FuzzReport> {
  try {
    return JSON.parse(await readFile(path, 'utf8')) as FuzzReport;
  } catch (error) {
    throw new Error(`schemathesis has no report: ${output}`, { cause: error });
  }
}

/** Returns the configuration. Strings and lists of strings have the same form in JSON and TOML. */
function configOf({ examples, existing }: FuzzOptions, authority: string): string {
  const lists = Object.entries(existing).filter(([, values]) => Array.isArray(values));
  const dictionaries = lists.map(([name, values]) => `${name} = { values = ${JSON.stringify(values)} }`);
  const bound = lists.map(([name]) => `"path.${name}" = { dictionary = "${name}", probability = 0.7 }`);
  return `
seed = ${HOSTILE_SEED}
tls-verify = ${JSON.stringify(authority)}
request-timeout = ${REQUEST_SECONDS}
continue-on-failure = true
# How hard it is to generate values for a schema is no property of the server.
suppress-health-check = ["all"]
headers = { Authorization = "Bearer \${BERTH_TOKEN}" }

[generation]
max-examples = ${examples}
mode = "all"
database = "none"
no-shrink = true

# The next run must not begin with the findings of this one.
[cache]
enabled = false

[checks]
enabled = false
not_a_server_error.enabled = true

[phases]
examples.enabled = false
stateful.enabled = false

[dictionaries]
${dictionaries.join('\n')}
namespaces = { values = [${JSON.stringify(existing.namespace)}] }

[parameters]
"path.namespace" = ${JSON.stringify(existing.namespace)}
${bound.join('\n')}

# The namespace of all other requests must exist.
[[operations]]
include-operation-id = ["getNamespacesByNamespace", "deleteNamespacesByNamespace"]
parameters = { "path.namespace" = { dictionary = "namespaces", probability = 0.2 } }

# Deployments and deletions that wait may need minutes.
[[operations]]
include-operation-id = ["postVms", "deleteVmsByName"]
parameters = { "query.wait" = "false" }

[[operations]]
include-operation-id = ${JSON.stringify(NOT_IMPLEMENTED)}
checks = { not_a_server_error = { expected-statuses = ["2xx", "4xx", 501] } }
`;
}
