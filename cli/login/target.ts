/** Finds the cluster and its identity provider from the flags, the HTTP API or the kubeconfig. */
import { isObjectName } from '../../api/v1alpha1/names.ts';
import { messageOf } from '../../base/errors.ts';
import { type JsonLimits, parseJson } from '../../base/json.ts';
import type { Connection } from '../../kube/credentials.ts';
import { readAuthority } from '../authority.ts';
import { CommandError, EXIT } from '../errors.ts';
import { CERTIFICATE_AUTHORITY_KEY, type Settings } from '../settingsfile.ts';
import type { Terminal } from '../terminal.ts';
import { fetchFrom } from './https.ts';
import { readKubeconfig } from './kubeconfig.ts';
import type { ContextPlace } from './session.ts';

/** Scopes that are used if the HTTP API names no scopes. The API server needs the claims that these scopes add to the ID token. */
const SCOPES = ['openid', 'email', 'groups'];
/** Largest number of scopes that are used. */
const SCOPES_LIMIT = 32;
/** Limits of the answer with the facts about the cluster. It has about 20 fields. */
const INFO_LIMITS: JsonLimits = { bytes: 64 * 1024, items: 512 };

export interface TargetFlags {
  readonly apiUrl?: string;
  readonly issuer?: string;
  readonly clientId?: string;
  readonly server?: string;
  /** Path of a PEM file with the certificate authority of all servers. */
  readonly certificateAuthority?: string;
}

/** Address of an API server. */
export type ServerAddress = Pick<Connection, 'server' | 'certificateAuthority' | 'serverName'>;

export interface LoginTarget {
  readonly address: ServerAddress;
  /** Private certificate authority of the provider as PEM. */
  readonly authority?: string | undefined;
  readonly issuer?: string | undefined;
  readonly clientID?: string | undefined;
  readonly scopes: readonly string[];
  readonly deviceFlow: boolean;
  readonly namespace?: string | undefined;
}

/**
 * Returns the cluster and its identity provider. A flag has precedence over the HTTP API. The kubeconfig is used only if no HTTP API is
 * known.
 *
 * @throws CommandError.
 */
export async function targetOf(
  terminal: Terminal,
  { place, settings, flags }: { place: ContextPlace; settings: Settings; flags: TargetFlags },
): Promise<LoginTarget> {
  const own = await authorityIn(flags.certificateAuthority, '--certificate-authority');
  const authority = own ?? (await authorityIn(settings.certificateAuthority, CERTIFICATE_AUTHORITY_KEY));
  const apiURL = flags.apiUrl ?? settings.apiURL;
  const found =
    apiURL === undefined
      ? { address: await addressOf(terminal, place, flags), scopes: SCOPES, deviceFlow: true }
      : await askHTTPAPI(terminal, apiURL, authority);
  const { issuer, clientId: clientID, server } = flags;
  return {
    ...found,
    authority,
    ...(server !== undefined && { address: { server: httpsIn(server), certificateAuthority: own } }),
    ...(issuer !== undefined && { issuer }),
    ...(clientID !== undefined && { clientID }),
  };
}

async function authorityIn(file: string | undefined, source: string): Promise<string | undefined> {
  return file === undefined ? undefined : await readAuthority(file, source);
}

/**
 * Returns the API server that the flag `--server` names. Without this flag, returns the API server of the context with the name `context`.
 * If this context does not exist, returns the API server of the current context.
 *
 * @throws CommandError when there is no API server.
 */
async function addressOf(
  { environment }: Terminal,
  { file, context }: ContextPlace,
  { server }: TargetFlags,
): Promise<ServerAddress> {
  if (server !== undefined) {
    return { server };
  }
  const kubeconfig = await readKubeconfig(file);
  const known = kubeconfig.entry('context', context) === undefined ? kubeconfig.currentContext : context;
  if (known === undefined) {
    throw new CommandError(
      `${file} has no suitable context. Name the HTTP API of Berth with --api-url, or the API server with --server`,
      EXIT.usage,
    );
  }
  const { loadConnection } = await import('../../kube/credentials.ts');
  try {
    return await loadConnection({ kubeconfigPath: file, context: known, environment });
  } catch (error) {
    throw new CommandError(messageOf(error), EXIT.usage);
  }
}

async function askHTTPAPI(
  { name, signal, environment }: Terminal,
  url: string,
  authority: string | undefined,
): Promise<Omit<LoginTarget, 'authority'>> {
  const fetch = fetchFrom({ who: 'HTTP API', authority, signal, environment });
  const answer = await fetch(`${url}/api/v1/cluster-info`, { headers: { accept: 'application/json' } });
  try {
    if (answer.status !== 200) {
      throw new Error(`it answers with HTTP status ${answer.status}`);
    }
    return parseInfo(parseJson(await answer.text(), INFO_LIMITS));
  } catch (error) {
    throw new CommandError(
      `${url} is not the HTTP API of Berth: ${messageOf(error)}. Check --api-url or the settings, which \`${name} config view\` shows`,
    );
  }
}

/** Returns the target in an answer of `cluster-info`. @throws Error or CommandError for a value that is not allowed. */
function parseInfo(document: unknown): Omit<LoginTarget, 'authority'> {
  const info = (typeof document === 'object' && document !== null ? document : {}) as Record<string, unknown>;
  const text = (name: string) => {
    const value = info[name];
    return typeof value === 'string' && value !== '' ? value : undefined;
  };
  const server = httpsIn(text('apiEndpoint') ?? '');
  const name = text('apiDomain');
  const scopes = Array.isArray(info['scopes']) ? info['scopes'] : SCOPES;
  return {
    address: {
      server,
      certificateAuthority: text('certData'),
      ...(name !== undefined && name !== hostOf(server) && { serverName: name }),
    },
    issuer: text('issuer') ?? text('baseOauthEndpoint'),
    clientID: text('appClientId'),
    scopes: scopes.filter((scope) => typeof scope === 'string').slice(0, SCOPES_LIMIT),
    deviceFlow: info['deviceFlow'] !== false,
    namespace: parseNamespace(text('namespaceDefault')),
  };
}

/**
 * Returns the namespace if its name is allowed. The check is necessary because the name is written into the kubeconfig, and other programs
 * can pass the name to a shell.
 *
 * @throws Error for a name that no namespace can have.
 */
function parseNamespace(text: string | undefined): string | undefined {
  if (text !== undefined && !isObjectName(text)) {
    throw new Error(`no namespace can have the name ${JSON.stringify(text)}`);
  }
  return text;
}

function httpsIn(address: string): string {
  const url = URL.parse(address);
  if (url?.protocol !== 'https:' || url.username !== '') {
    throw new CommandError(`The API server ${JSON.stringify(address)} must be an https address`, EXIT.usage);
  }
  return address.replace(/\/+$/, '');
}

function hostOf(address: string): string {
  return new URL(address).hostname.replace(/^\[(.*)\]$/, '$1');
}
