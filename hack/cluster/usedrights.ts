/**
 * Records which rights the programs of Berth use in the clusters of a run of tests. The API server writes the requests of these programs to
 * a log. When the cluster ends, the distinct rights of the log go into the folder of the run. test/rights compares them with the chart.
 */
import { createReadStream, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { createInterface } from 'node:readline';
import { isMissing, undefinedIf } from '../../base/errors.ts';

/** Environment variable with the folder of the run. Clusters record nothing without it. */
export const USED_RIGHTS_FOLDER = 'BERTH_TEST_RIGHTS';
const LOG = 'rights.log';
/** The API server begins a new file at this size in MiB, and keeps a few of the old files. The names of all of them begin with `rights`. */
const LOG_MEBIBYTES = 64;
const OLD_LOGS = 3;

/** Accounts in `berth-system`. Each of their programs has the name of the account as its user agent. Tests also use these accounts themselves. */
const PROGRAMS = ['berth-operator', 'berth-server', 'berth-runners', 'berth-uninstall', 'berth-agent'];
/** Account of the program that collects metrics in test/e2e/installed. */
const READER = 'system:serviceaccount:monitoring:prometheus';
const ACCOUNTS = [...PROGRAMS.map((name) => `system:serviceaccount:berth-system:${name}`), READER];
const NODES = 'system:nodes';
/** Accounts and objects of the chart have these names, or stand in these namespaces. Names that tests choose are left out. */
const CHART_NAME = /^(?:berth-[a-z-]+|kubernetes)$/;
const CHART_NAMESPACES = ['', 'berth-system', 'default', 'kube-node-lease', 'platform-default'];

/** One right that a program used. Empty fields mean the cluster, or an object or namespace of a test. */
export interface UsedRight {
  /** Name of a ServiceAccount, or `host` for any host. */
  readonly account: string;
  readonly verb: string;
  /** `RESOURCE[/SUBRESOURCE][.GROUP]`, or a path that is no resource. */
  readonly resource: string;
  readonly namespace: string;
  readonly name: string;
}

type Attributes = {
  readonly [key in 'verb' | 'group' | 'resource' | 'subresource' | 'namespace' | 'name']?: string | undefined;
};

/** Line of the log, in the format `audit.k8s.io/v1`. */
interface AuditEvent {
  readonly verb: string;
  readonly userAgent?: string;
  readonly user: { readonly username: string };
  readonly objectRef?: Omit<Attributes, 'group' | 'verb'> & { readonly apiGroup?: string };
  readonly responseStatus?: { readonly code?: number };
  /** Only of reviews. */
  readonly responseObject?: {
    readonly spec?: {
      readonly user?: string;
      readonly resourceAttributes?: Attributes;
      readonly nonResourceAttributes?: { readonly verb: string; readonly path: string };
    };
    readonly status?: { readonly allowed?: boolean };
  };
}

/** Returns arguments of the API server, and writes the files that they name. There are none outside a run that records rights. */
export function recordingArguments(directory: string): string[] {
  if (process.env[USED_RIGHTS_FOLDER] === undefined) {
    return [];
  }
  const policy = join(directory, 'rights-policy.json');
  const reviews = { group: 'authorization.k8s.io', resources: ['subjectaccessreviews'] };
  const credentials = { group: '', resources: ['secrets'], resourceNames: ['berth-image-storage'] };
  const rules = [
    // Operator and hosts ask for the right to read metrics, which is a right of their callers. The HTTP API asks for rights of people.
    {
      level: 'RequestResponse',
      users: ACCOUNTS.filter((name) => /:berth-(?:operator|runners)$/.test(name)),
      resources: [reviews],
    },
    { level: 'RequestResponse', userGroups: [NODES], resources: [reviews] },
    { level: 'Metadata', users: ACCOUNTS },
    { level: 'Metadata', userGroups: [NODES], resources: [credentials] },
    { level: 'None' },
  ];
  // A watch is recorded when it starts, because it may end together with the API server.
  const head = { apiVersion: 'audit.k8s.io/v1', kind: 'Policy', omitStages: ['RequestReceived'] };
  writeFileSync(policy, JSON.stringify({ ...head, rules }));
  return [
    `--audit-policy-file=${policy}`,
    `--audit-log-path=${join(directory, LOG)}`,
    `--audit-log-maxsize=${LOG_MEBIBYTES}`,
    `--audit-log-maxbackup=${OLD_LOGS}`,
  ];
}

/** Writes the distinct rights of a cluster's log into the folder of the run, before the log is removed with the cluster. */
export async function keepUsedRights(directory: string): Promise<void> {
  const folder = process.env[USED_RIGHTS_FOLDER];
  if (folder === undefined) {
    return;
  }
  const used = new Set<string>();
  for (const file of (await undefinedIf(isMissing, readdir(directory))) ?? []) {
    if (/^rights.*\.log$/.test(file)) {
      await readLog(join(directory, file), used);
    }
  }
  if (used.size > 0) {
    mkdirSync(folder, { recursive: true });
    // A folder of a cluster can have the same name again later.
    const file = join(folder, `${basename(directory)}-${process.pid}-${Date.now()}.jsonl`);
    writeFileSync(file, [...used].map((line) => `${line}\n`).join(''));
  }
}

async function readLog(path: string, used: Set<string>): Promise<void> {
  for await (const line of createInterface({ input: createReadStream(path) })) {
    for (const right of readEvent(line)) {
      used.add(JSON.stringify(right));
    }
  }
}

/** Returns the rights that a line of the log shows. The last line is cut off if the API server was killed while it wrote the line. */
function readEvent(line: string): UsedRight[] {
  if (!line.endsWith('}')) {
    return [];
  }
  const event = JSON.parse(line) as AuditEvent;
  const code = event.responseStatus?.code ?? 0;
  // Answers like 404 and 409 also show that the API server allowed the request.
  return code === 0 || code === 401 || code === 403
    ? []
    : [...requestedRight(event), ...reviewedRight(event)];
}

function requestedRight({ user: { username }, userAgent = '', verb, objectRef }: AuditEvent): UsedRight[] {
  const account = accountOf(username);
  const [program = ''] = userAgent.split(/[/ ]/);
  if (objectRef === undefined || (PROGRAMS.includes(account) && program !== account)) {
    return [];
  }
  return [usedRight(account, { ...objectRef, verb, group: objectRef.apiGroup })];
}

/** Returns the right of the caller about which a program asked the API server. */
function reviewedRight({ responseObject: { spec = {}, status = {} } = {} }: AuditEvent): UsedRight[] {
  const { user = '', resourceAttributes, nonResourceAttributes: other } = spec;
  if (status.allowed !== true) {
    return [];
  }
  const attributes = resourceAttributes ?? { verb: other?.verb, resource: other?.path };
  return [usedRight(accountOf(user), attributes)];
}

function usedRight(account: string, attributes: Attributes): UsedRight {
  const { verb = '', namespace = '', name = '' } = attributes;
  return {
    account,
    verb,
    resource: fullResource(attributes),
    namespace: CHART_NAMESPACES.includes(namespace) ? namespace : 'of a test',
    name: CHART_NAME.test(name) ? name : '',
  };
}

function fullResource({ group = '', resource = '', subresource = '' }: Attributes): string {
  return `${resource}${subresource === '' ? '' : `/${subresource}`}${group === '' ? '' : `.${group}`}`;
}

function accountOf(username: string): string {
  return username.startsWith('system:node:') ? 'host' : (username.split(':').at(-1) ?? '');
}

/** Returns the rights that were used in all clusters of the run that have ended. The result is undefined if the run recorded none. */
export function usedRights(): UsedRight[] | undefined {
  const folder = process.env[USED_RIGHTS_FOLDER];
  if (folder === undefined || !existsSync(folder)) {
    return undefined;
  }
  const lines = readdirSync(folder).flatMap((file) => readFileSync(join(folder, file), 'utf8').split('\n'));
  return [...new Set(lines)].filter((line) => line !== '').map((line) => JSON.parse(line) as UsedRight);
}
