/**
 * Prints the file with which an API server accepts the ID tokens of an OpenID Connect provider (docs/operate/sign-in.md).
 *
 *   authentication.ts ISSUER CLIENT --managed-group NAME… [OPTION…]   others than members of these groups are cluster administrators
 *   authentication.ts ISSUER CLIENT --hardened [OPTION…]              nobody is a cluster administrator because of a token
 *
 *   --groups-claim NAME   claim with the list of groups; `groups` when absent
 *   --beside FILE         file that this command printed for the other providers; the new file has all of them
 *   --user-prefix NAME:   required with --beside: prefix of the names of this provider's users
 *   --group-prefix NAME:  required with --beside: prefix of the names of this provider's groups
 *   --authority FILE      certificate of the authority of the provider, if the machine of the API server does not trust it
 */
import { X509Certificate } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import { parse, stringify } from 'yaml';
import { runCommand } from './command.ts';

/** Longest lifetime of a token in seconds. Nobody can revoke an ID token, so its lifetime limits how long a stolen token can be used. */
const TOKEN_SECONDS = 3600;
/** Prefix of all groups from the first provider. Because of it, a provider cannot give users a group of the cluster or of Berth. */
const GROUP_PREFIX = 'oidc:';
/** Group of users who have no managed group. The chart can bind it to `cluster-admin`. */
const CLUSTER_ADMINS = 'berth:cluster-admins';
const USAGE = 'usage: authentication.ts ISSUER CLIENT (--managed-group NAME… | --hardened) [OPTION…]';

export interface AuthenticationOptions {
  /** Address of the provider, exactly as in the claim `iss`. */
  issuer: string;
  /** Id of the client at the provider, which is the audience of the tokens. */
  client: string;
  /** Groups of the provider, without a prefix. Users without one of them become cluster administrators. */
  managedGroups?: readonly string[] | undefined;
  /** If true, no user becomes a cluster administrator. It cannot be combined with managed groups. */
  hardened?: boolean | undefined;
  groupsClaim?: string | undefined;
  /** Certificate of the provider's authority as PEM. */
  authority?: string | undefined;
  /** Prefix of the names of users, for example `corp:`. It is empty for the first provider. */
  userPrefix?: string | undefined;
  /** Prefix of the names of groups. `oidc:` for the first provider. */
  groupPrefix?: string | undefined;
  /** Configuration that this function returned for the other providers. With it, both prefixes are required. */
  beside?: AuthenticationConfiguration | undefined;
}

/**
 * Returns the document for `--authentication-config`.
 *
 * @throws Error when an option has a value that the API server or every token would fail on
 */
export function authenticationConfiguration(options: AuthenticationOptions): AuthenticationConfiguration {
  checkOptions(options);
  const { beside, userPrefix = '' } = options;
  checkPrefixes(options, beside);
  return {
    apiVersion: 'apiserver.config.k8s.io/v1',
    kind: 'AuthenticationConfiguration',
    jwt: [...withoutUsersOf(beside?.jwt ?? [], userPrefix), providerOf(options)],
  };
}

function providerOf({
  issuer,
  client,
  managedGroups = [],
  groupsClaim = 'groups',
  groupPrefix = GROUP_PREFIX,
  userPrefix = '',
  authority,
}: AuthenticationOptions): Provider {
  const groups = groupsExpressions(groupsClaim, managedGroups, groupPrefix);
  return {
    issuer: {
      url: issuer,
      ...(authority !== undefined && { certificateAuthority: authority }),
      audiences: [client],
    },
    claimValidationRules: [
      {
        expression: `claims.exp - claims.iat <= ${TOKEN_SECONDS}`,
        message: 'the token lives longer than one hour',
      },
      {
        expression: groups.areNames,
        message: `the claim ${groupsClaim} is no list of names`,
      },
    ],
    claimMappings: {
      username: { expression: usernameExpression(userPrefix) },
      groups: { expression: groups.mapped },
      uid: { claim: 'sub' },
    },
    userValidationRules: [
      {
        expression: '!user.username.startsWith("system:")',
        message: 'users of the provider are no users of the system',
      },
    ],
  };
}

/**
 * Returns two expressions: whether the claim is a list of names, and the groups of the user. The API server computes the groups before it
 * checks the claim. If the claim has another form, the user gets no groups. Otherwise the user would seem to have no managed group. A
 * missing claim is an error.
 */
function groupsExpressions(
  claim: string,
  managed: readonly string[],
  prefix: string,
): { areNames: string; mapped: string } {
  const groups = `dyn(claims[${literal(claim)}])`;
  const areNames = `type(${groups}) == list && ${groups}.all(g, type(g) == string)`;
  const own = `${groups}.map(g, ${literal(prefix)} + string(g))`;
  const names = managed.map(literal).join(', ');
  const admins =
    managed.length === 0
      ? ''
      : ` + (${groups}.exists(g, g in [${names}]) ? [] : [${literal(CLUSTER_ADMINS)}])`;
  return { areNames, mapped: `${areNames} ? ${own}${admins} : []` };
}

function checkOptions({
  issuer,
  client,
  managedGroups = [],
  hardened = false,
  ...rest
}: AuthenticationOptions): void {
  const { groupsClaim = 'groups', groupPrefix = GROUP_PREFIX, authority } = rest;
  checkIssuer(issuer);
  for (const name of [client, groupsClaim, ...managedGroups]) {
    if (name.trim() !== name || name === '') {
      throw new Error(`CLIENT and names must not be empty or have spaces around them: "${name}"`);
    }
  }
  checkManagedGroups(managedGroups, hardened, groupPrefix);
  if (authority !== undefined) {
    checkAuthority(authority);
  }
}

/** @throws Error when the profile is unclear, or a group has the prefix that the cluster gives it */
function checkManagedGroups(managedGroups: readonly string[], hardened: boolean, groupPrefix: string): void {
  if (managedGroups.length > 0 === hardened) {
    throw new Error('Use either --managed-group, once for each group with a role, or --hardened');
  }
  if (managedGroups.some((name) => name.startsWith(groupPrefix))) {
    // With such a name, no user would have a managed group, so all users would be cluster administrators.
    throw new Error(`Name groups as the provider names them, without ${groupPrefix}`);
  }
}

/** @throws Error when the API server would refuse the address */
function checkIssuer(issuer: string): void {
  const url = URL.parse(issuer);
  const isPlain = url?.protocol === 'https:' && url.username === '' && url.password === '';
  if (!isPlain || /[\s?#]/.test(issuer)) {
    throw new Error(`ISSUER must be an https address without user, query and fragment, not "${issuer}"`);
  }
}

function checkAuthority(pem: string): void {
  try {
    void new X509Certificate(pem);
  } catch (error) {
    throw new Error('The file of --authority has no certificate in PEM form', { cause: error });
  }
}

/** Reads a file that this command printed. @throws Error when it has no list of providers */
async function readConfiguration(file: string): Promise<AuthenticationConfiguration> {
  const document = parse(await readFile(file, 'utf8')) as Partial<AuthenticationConfiguration> | null;
  if (document?.kind !== 'AuthenticationConfiguration' || !Array.isArray(document.jwt)) {
    throw new Error(`The file ${file} of --beside must be one that this command printed`);
  }
  return document as AuthenticationConfiguration;
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      'managed-group': { type: 'string', multiple: true },
      hardened: { type: 'boolean' },
      'groups-claim': { type: 'string' },
      authority: { type: 'string' },
      beside: { type: 'string' },
      'user-prefix': { type: 'string' },
      'group-prefix': { type: 'string' },
    },
  });
  const [issuer, client, ...others] = positionals;
  if (issuer === undefined || client === undefined || others.length > 0) {
    throw new Error(USAGE);
  }
  const configuration = authenticationConfiguration({
    issuer,
    client,
    managedGroups: values['managed-group'],
    hardened: values.hardened,
    groupsClaim: values['groups-claim'],
    authority: values.authority === undefined ? undefined : await readFile(values.authority, 'utf8'),
    beside: values.beside === undefined ? undefined : await readConfiguration(values.beside),
    userPrefix: values['user-prefix'],
    groupPrefix: values['group-prefix'],
  });
  process.stdout.write(stringify(configuration, { lineWidth: 0 }));
}

/**
 * Form of a prefix. The colon is its last character only, so no prefix is the beginning of another one. Without own prefixes, a provider
 * could name the users and groups of another provider.
 */
const PREFIX = /^[a-z0-9][a-z0-9.-]{0,30}:$/;
/** Beginnings of names that belong to the cluster and to Berth. */
const RESERVED_PREFIXES = ['system:', 'berth:'];

/** Entry of the configuration for one provider. */
interface Provider {
  issuer: { url: string; certificateAuthority?: string; audiences: string[] };
  claimValidationRules: Rule[];
  claimMappings: {
    username: { expression: string };
    groups: { expression: string };
    uid: { claim: string };
  };
  userValidationRules: Rule[];
}

interface Rule {
  expression: string;
  message: string;
}

/** Document for `--authentication-config` of an API server. */
interface AuthenticationConfiguration {
  apiVersion: string;
  kind: 'AuthenticationConfiguration';
  jwt: Provider[];
}

/** Provider whose prefixes are checked. Prefixes are absent for the first provider. */
interface Prefixed {
  issuer: string;
  userPrefix?: string | undefined;
  groupPrefix?: string | undefined;
}

/** Returns the expression for the name of a user. The name is empty, and the token is refused, if the address is not verified. */
function usernameExpression(prefix: string): string {
  return `claims.email_verified ? ${prefix === '' ? '' : `${literal(prefix)} + `}claims.email : ""`;
}

/** Returns the prefix of a provider's users. @throws Error when this program did not print the entry of the provider */
function formatUserPrefix({ issuer, claimMappings }: Provider): string {
  return prefixIn(issuer.url, claimMappings.username.expression, / \? (?:"([^"]*)" \+ )?claims\.email : ""$/);
}

/** Returns the prefix of a provider's groups. @throws Error when this program did not print the entry of the provider */
function groupPrefixOf({ issuer, claimMappings }: Provider): string {
  return prefixIn(issuer.url, claimMappings.groups.expression, /\.map\(g, "([^"]*)" \+ string\(g\)\)/);
}

function prefixIn(issuer: string, expression: string, form: RegExp): string {
  const match = form.exec(expression);
  if (match === null) {
    throw new Error(`The entry of ${issuer} in the file of --beside must be as this command printed it`);
  }
  return match[1] ?? '';
}

/**
 * Checks the prefixes of a provider beside others. The first provider needs none.
 *
 * @throws Error when a prefix is absent, has another form, is reserved, or belongs to another provider
 */
function checkPrefixes(
  { issuer, userPrefix, groupPrefix }: Prefixed,
  beside: AuthenticationConfiguration | undefined,
): void {
  const others = beside?.jwt ?? [];
  if (others.some(({ issuer: { url } }) => url === issuer)) {
    throw new Error(`The file of --beside already has the issuer ${issuer}`);
  }
  checkPrefix('--user-prefix', userPrefix, beside && others.map(formatUserPrefix));
  checkPrefix('--group-prefix', groupPrefix, beside && others.map(groupPrefixOf));
}

function checkPrefix(option: string, prefix: string | undefined, taken: readonly string[] | undefined): void {
  if (prefix === undefined && taken === undefined) {
    return;
  }
  if (prefix === undefined || !PREFIX.test(prefix)) {
    throw new Error(
      `${option} must be a name of at most 31 lower-case letters, digits, dots and hyphens, with a colon at its end, not "${prefix ?? ''}". A provider beside others needs it`,
    );
  }
  if (RESERVED_PREFIXES.includes(prefix)) {
    throw new Error(`${option} must not be ${RESERVED_PREFIXES.join(' or ')}, but it is "${prefix}"`);
  }
  if (taken?.includes(prefix) === true) {
    throw new Error(
      `${option} must differ from the prefixes of the other providers, but "${prefix}" is taken`,
    );
  }
}

/** Returns the entries of the providers. One whose users have no prefix must name no user with this prefix of another provider. */
function withoutUsersOf(providers: readonly Provider[], prefix: string): Provider[] {
  const rule = {
    expression: `!user.username.startsWith(${literal(prefix)})`,
    message: `users of the provider are no users of the provider with the prefix ${prefix}`,
  };
  return providers.map((provider) =>
    formatUserPrefix(provider) === ''
      ? { ...provider, userValidationRules: [...provider.userValidationRules, rule] }
      : provider,
  );
}

/** Returns a string literal of the Common Expression Language. This language accepts all escapes of JSON. */
function literal(text: string): string {
  return JSON.stringify(text);
}

if (import.meta.main) {
  await runCommand(main);
}
