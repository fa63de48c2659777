/**
 * Gets tokens from the credential plug-in of a kubeconfig: a program that writes an `ExecCredential`
 * (https://kubernetes.io/docs/reference/config-api/client-authentication.v1/).
 */
import path from 'node:path';
import { messageOf } from '../base/errors.ts';
import { ProgramError, run } from '../base/exec.ts';
import { type JsonLimits, parseJson } from '../base/json.ts';
import { CredentialError } from './errors.ts';

/** Time limit of a plug-in in milliseconds. It is long, because a plug-in can open a browser in which a person signs in. */
const PLUGIN_MILLISECONDS = 300_000;
/**
 * Time in milliseconds after which the standard error of a running plug-in is shown. A plug-in that still runs probably waits for a person
 * and tells this person what to do. The output of a quick plug-in is not shown, because the message of its failure contains it.
 */
const SHOW_MILLISECONDS = 2_000;
/** Limit of a plug-in's output in bytes. A token has a few KiB, and an API server refuses headers of more than 1 MiB. */
const CREDENTIAL_LIMITS: JsonLimits = { bytes: 1024 * 1024, items: 1_024 };
/** A token that expires within this time in milliseconds is not used, because a request needs some time, and clocks differ. */
const MARGIN_MILLISECONDS = 2_000;
const API_VERSIONS: readonly unknown[] = [
  'client.authentication.k8s.io/v1',
  'client.authentication.k8s.io/v1beta1',
];
/** Pattern of the characters that a token may contain. A line break is refused, because it would end the header of the request. */
const TOKEN = /^[\x21-\x7e]+$/;

/**
 * Returns a token, which stays in memory until it expires. If `isRefused` is true, the API server has refused the token in memory, so the
 * plug-in runs again.
 *
 * @throws CredentialError when the plug-in gives no usable token.
 */
export type TokenPlugin = (isRefused?: boolean) => Promise<string>;

/** The field `exec` of a user in a kubeconfig. */
export interface ExecPlugin {
  readonly apiVersion: string;
  readonly command: string;
  readonly args: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  /** Text that tells users how to install the program. It is shown if the program is not installed. */
  readonly installHint: string;
  /** Whether the program gets the description of the kubeconfig's cluster. */
  readonly provideClusterInfo: boolean;
}

/** Description of a kubeconfig's cluster for plug-ins, with the field names of `ExecCredential`. Undefined fields are left out. */
export interface PluginCluster {
  readonly server: string;
  readonly 'tls-server-name': string | undefined;
  /** PEM text in base64. */
  readonly 'certificate-authority-data': string | undefined;
  /** The part of the kubeconfig that is meant for plug-ins, unchanged. */
  readonly config: unknown;
}

type Environment = Readonly<Record<string, string | undefined>>;
type Fields = Readonly<Record<string, unknown>>;

interface Credential {
  readonly token: string;
  /** Time in milliseconds since 1970 from which the token is no longer used. */
  readonly end: number;
}

/**
 * Reads the field `exec` of a user. A relative path of the program begins in `folder`, the folder of the kubeconfig.
 *
 * @throws Error with the field in the message when the value is not valid, or when the plug-in needs a terminal
 */
export function execPluginIn(exec: unknown, folder: string): ExecPlugin {
  const { apiVersion, command, args, env, installHint, interactiveMode, provideClusterInfo } =
    parseFields(exec);
  if (!API_VERSIONS.includes(apiVersion)) {
    throw new Error(`exec.apiVersion must be ${API_VERSIONS.join(' or ')}`);
  }
  if (typeof command !== 'string' || command === '') {
    throw new Error('exec.command must be the name of a program');
  }
  if (interactiveMode === 'Always') {
    throw new Error(
      'exec.interactiveMode Always is not supported, because the plug-in has no terminal for questions',
    );
  }
  return {
    apiVersion: apiVersion as string,
    // A program name without a path separator is searched in PATH, as in client-go.
    command: command.includes(path.sep) ? path.resolve(folder, command) : command,
    args: parseList(args, 'exec.args').map((arg) => parseText(arg, 'exec.args')),
    env: Object.fromEntries(
      parseList(env, 'exec.env').map((entry) => {
        const { name, value } = parseFields(entry);
        return [parseText(name, 'exec.env'), parseText(value, 'exec.env')];
      }),
    ),
    installHint: typeof installHint === 'string' ? installHint : '',
    provideClusterInfo: provideClusterInfo === true,
  };
}

/** Returns the source of tokens for the cluster. Calls at the same time share one run of the program. */
export function tokenPlugin(
  plugin: ExecPlugin,
  cluster: PluginCluster,
  environment: Environment,
): TokenPlugin {
  let kept: Credential | undefined;
  let running: Promise<Credential> | undefined;
  return async (isRefused = false) => {
    if (!isRefused && kept !== undefined && kept.end > Date.now()) {
      return kept.token;
    }
    running ??= runPlugin(plugin, cluster, environment).finally(() => {
      running = undefined;
    });
    kept = await running;
    return kept.token;
  };
}

async function runPlugin(
  plugin: ExecPlugin,
  cluster: PluginCluster,
  environment: Environment,
): Promise<Credential> {
  const { apiVersion, command, args, env, installHint, provideClusterInfo } = plugin;
  const spec = { ...(provideClusterInfo && { cluster }), interactive: false };
  const request = { apiVersion, kind: 'ExecCredential', spec };
  const name = `The credential plug-in ${command}`;
  const message = slowMessage();
  let output: string;
  try {
    output = await run(command, args, {
      name,
      timeoutMilliseconds: PLUGIN_MILLISECONDS,
      outputLimitBytes: CREDENTIAL_LIMITS.bytes,
      environment: { ...environment, ...env, KUBERNETES_EXEC_INFO: JSON.stringify(request) },
      onErrorOutput: message.take,
    });
  } catch (error) {
    const isAbsent = error instanceof ProgramError && error.code === 'ENOENT';
    const hint = isAbsent && installHint !== '' ? `. ${installHint}` : '';
    const exitCode = error instanceof ProgramError ? error.exitCode : undefined;
    throw new CredentialError(`${messageOf(error)}${hint}`, exitCode);
  } finally {
    message.end();
  }
  return parseCredential(output, apiVersion, name);
}

/** Shows the standard error of a plug-in that runs for a long time. Call `end` when the plug-in has ended. */
function slowMessage(): { take: (text: string) => void; end: () => void } {
  let early = '';
  let isSlow = false;
  const timer = setTimeout(() => {
    isSlow = true;
    process.stderr.write(early);
  }, SHOW_MILLISECONDS);
  const take = (text: string): void => {
    if (isSlow) {
      process.stderr.write(text);
    } else {
      early += text;
    }
  };
  return { take, end: () => clearTimeout(timer) };
}

/** Messages of this function must not contain parts of the output, because the output contains the token. */
function parseCredential(output: string, apiVersion: string, name: string): Credential {
  let document: unknown;
  try {
    document = parseJson(output, CREDENTIAL_LIMITS);
  } catch {
    throw new CredentialError(`${name} wrote output that is not JSON`);
  }
  const answer = parseFields(document);
  if (answer['kind'] !== 'ExecCredential' || answer['apiVersion'] !== apiVersion) {
    throw new CredentialError(`${name} wrote output that is not an ExecCredential of ${apiVersion}`);
  }
  const { token, expirationTimestamp } = parseFields(answer['status']);
  if (typeof token !== 'string' || !TOKEN.test(token)) {
    throw new CredentialError(
      `${name} gave no token. Plug-ins that give a client certificate instead are not supported`,
    );
  }
  if (isAbsent(expirationTimestamp)) {
    return { token, end: Infinity };
  }
  const end = typeof expirationTimestamp === 'string' ? Date.parse(expirationTimestamp) : Number.NaN;
  if (Number.isNaN(end)) {
    throw new CredentialError(`${name} gave an expirationTimestamp that is not a valid time`);
  }
  return { token, end: end - MARGIN_MILLISECONDS };
}

/** Plug-ins also write null or an empty text in place of a value that they do not give. */
function isAbsent(value: unknown): boolean {
  return value === undefined || value === null || value === '';
}

function parseFields(value: unknown): Fields {
  return typeof value === 'object' && value !== null ? (value as Fields) : {};
}

function parseList(value: unknown, name: string): readonly unknown[] {
  if (value !== undefined && value !== null && !Array.isArray(value)) {
    throw new Error(`${name} must be a list`);
  }
  return value ?? [];
}

function parseText(value: unknown, name: string): string {
  if (typeof value !== 'string') {
    throw new Error(`${name} must contain only texts`);
  }
  return value;
}
