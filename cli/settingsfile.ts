/** Reads the settings of this command from a file of the user. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf, isMissing, messageOf, undefinedIf } from '../base/errors.ts';
import { homeFolder } from '../base/files.ts';
import { CommandError, EXIT } from './errors.ts';

export interface Settings {
  /** Name of an environment variable that contains the namespace. `BERTH_NAMESPACE` has precedence over this variable. */
  readonly namespaceVariable?: string;
  /**
   * Prefix that flags and variables may use instead of `platform-` at the start of a namespace's name. With `ci-`, the name `ci-team` means
   * the namespace `platform-team`.
   */
  readonly namespacePrefix?: string;
  /** Name of the context that `login` writes. */
  readonly context?: string;
  /** Address of the HTTP API: scheme, host and port, without a slash at the end. */
  readonly apiURL?: string;
  /** Absolute path of a PEM file with the private authority of the HTTP API's certificate. */
  readonly certificateAuthority?: string;
  /** Name of the user with which `vm ssh` logs in to a guest. */
  readonly sshUser?: string;
}

/** Key of {@link Settings.apiURL} in the file. */
export const API_URL_KEY = 'apiURL';
/** Key of {@link Settings.certificateAuthority} in the file. */
export const CERTIFICATE_AUTHORITY_KEY = 'certificateAuthority';
/** Rule for the address of the HTTP API. In messages, this rule follows the name of the flag or key that contains the address. */
export const API_URL_FORM =
  'must be https:// with a host and an optional port. Only an address of this computer can have http://';
/** Longest address of the HTTP API in characters: a scheme, a host name and a port. */
const API_URL_LENGTH = 272;
/** Names of this computer in URLs. */
const LOOPBACK: readonly string[] = ['127.0.0.1', '[::1]', 'localhost'];
const PREFIX = /^[a-z][a-z0-9-]{0,61}$/;
const CONTEXT = /^[\w.@:/-]{1,253}$/;
/** Pattern of a user's name. A name cannot begin with a dash, because ssh would read it as an option. */
const USER = /^[A-Za-z_][A-Za-z0-9_.@-]{0,127}$/;
/** Pattern of a path that means the same file in each folder. */
const ABSOLUTE_PATH = /^\/[^\0\r\n]{1,4095}$/;
const VARIABLE = /^[A-Za-z_][A-Za-z0-9_]{0,127}$/;

export type Environment = Readonly<Record<string, string | undefined>>;

export function settingsFile(environment: Environment): string {
  const folder = environment['XDG_CONFIG_HOME'] || join(homeFolder(environment), '.config');
  return join(folder, 'berth', 'config.yaml');
}

/**
 * Returns the settings in the settings file. They are empty if the file does not exist.
 *
 * @throws CommandError when the file has a mistake or cannot be read.
 */
export async function readSettings(environment: Environment): Promise<Settings> {
  const file = settingsFile(environment);
  let text: string | undefined;
  try {
    text = await undefinedIf(isAbsent, readFile(file, 'utf8'));
  } catch (error) {
    throw new CommandError(`${file}: ${messageOf(error)}`, EXIT.usage);
  }
  return text === undefined ? {} : await settingsOf(file, text);
}

/** Reports whether the file does not exist. `HOME` can name a file such as `/dev/null`, so a folder of the path can be a file, too. */
function isAbsent(error: unknown): boolean {
  return isMissing(error) || codeOf(error) === 'ENOTDIR';
}

/** Returns the settings in the text of the file. @throws CommandError when the text has a mistake. */
export async function settingsOf(file: string, text: string): Promise<Settings> {
  const { parse } = await import('yaml');
  try {
    return parseSettings(parse(text) ?? {});
  } catch (error) {
    throw new CommandError(`${file}: ${messageOf(error)}`, EXIT.usage);
  }
}

/**
 * Returns the address of the HTTP API without slashes at the end. The result is undefined if the text does not follow {@link API_URL_FORM}.
 */
export function parseApiURL(text: unknown): string | undefined {
  const url = typeof text === 'string' && text.length <= API_URL_LENGTH ? URL.parse(text) : null;
  if (url === null || !isPrivate(url)) {
    return undefined;
  }
  const { username, password, pathname, search, hash, origin } = url;
  return username + password + search + hash === '' && /^\/*$/.test(pathname) ? origin : undefined;
}

/**
 * Reports whether only the server at the address can read requests. Without TLS, other computers in the network could read a token in a
 * request. They could also answer in place of the HTTP API, and name their own server as the API server.
 */
function isPrivate({ protocol, hostname }: URL): boolean {
  return protocol === 'https:' || (protocol === 'http:' && LOOPBACK.includes(hostname));
}

function parseSettings(document: unknown): Settings {
  const {
    aliases = {},
    ssh = {},
    [API_URL_KEY]: address,
    [CERTIFICATE_AUTHORITY_KEY]: authority,
  } = parseMap(document, '', ['aliases', API_URL_KEY, CERTIFICATE_AUTHORITY_KEY, 'ssh']);
  const { namespaceVariable, namespacePrefix, context } = parseMap(aliases, 'aliases', [
    'namespaceVariable',
    'namespacePrefix',
    'context',
  ]);
  const { user } = parseMap(ssh, 'ssh', ['user']);
  const settings = {
    namespaceVariable: parseText(namespaceVariable, VARIABLE),
    namespacePrefix: parseText(namespacePrefix, PREFIX),
    context: parseText(context, CONTEXT),
    apiURL: parseApiURL(address),
    certificateAuthority: parseText(authority, ABSOLUTE_PATH),
    sshUser: parseText(user, USER),
  };
  const mistakes = [
    [
      namespaceVariable,
      settings.namespaceVariable,
      'aliases.namespaceVariable must be the name of a variable',
    ],
    [
      namespacePrefix,
      settings.namespacePrefix,
      'aliases.namespacePrefix must be a prefix for names of namespaces, such as ci-',
    ],
    [
      context,
      settings.context,
      'aliases.context must be a name of letters, digits and the characters ._@:/-',
    ],
    [user, settings.sshUser, 'ssh.user must be the name of a user'],
    [address, settings.apiURL, `${API_URL_KEY} ${API_URL_FORM}`],
    [
      authority,
      settings.certificateAuthority,
      `${CERTIFICATE_AUTHORITY_KEY} must be the absolute path of a PEM file`,
    ],
  ] as const;
  const mistake = mistakes.find(([written, value]) => written !== undefined && value === undefined);
  if (mistake !== undefined) {
    throw new Error(mistake[2]);
  }
  return Object.fromEntries(Object.entries(settings).filter(([, value]) => value !== undefined));
}

function parseText(value: unknown, form: RegExp): string | undefined {
  return typeof value === 'string' && form.test(value) ? value : undefined;
}

/** Returns the document as a map. @throws Error when the document is not a map, or when it has a key that is not in `keys`. */
function parseMap(document: unknown, path: string, keys: readonly string[]): Record<string, unknown> {
  if (typeof document !== 'object' || document === null || Array.isArray(document)) {
    throw new Error(`${path || 'the file'} must be a map`);
  }
  const unknown = Object.keys(document).find((key) => !keys.includes(key));
  if (unknown !== undefined) {
    const name = [path, unknown].filter((part) => part !== '').join('.');
    throw new Error(`${name} is not a setting. The settings are ${keys.join(', ')}`);
  }
  return document as Record<string, unknown>;
}
