/** Entries of several identity providers in the configuration of an API server, and the prefixes that keep their users apart. */

/**
 * Form of a prefix. The colon is its last character only, so no prefix is the beginning of another one. Without own prefixes, a provider
 * could name the users and groups of another provider.
 */
const PREFIX = /^[a-z0-9][a-z0-9.-]{0,30}:$/;
/** Beginnings of names that belong to the cluster and to Berth. */
const RESERVED_PREFIXES = ['system:', 'berth:'];

/** Entry of the configuration for one provider. */
export interface Provider {
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
export interface AuthenticationConfiguration {
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
export function usernameExpression(prefix: string): string {
  return `claims.email_verified ? ${prefix === '' ? '' : `${literal(prefix)} + `}claims.email : ""`;
}

/** Returns the prefix of a provider's users. @throws Error when this program did not print the entry of the provider */
function userPrefixOf({ issuer, claimMappings }: Provider): string {
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
export function checkPrefixes(
  { issuer, userPrefix, groupPrefix }: Prefixed,
  beside: AuthenticationConfiguration | undefined,
): void {
  const others = beside?.jwt ?? [];
  if (others.some(({ issuer: { url } }) => url === issuer)) {
    throw new Error(`The file of --beside already has the issuer ${issuer}`);
  }
  checkPrefix('--user-prefix', userPrefix, beside && others.map(userPrefixOf));
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
export function withoutUsersOf(providers: readonly Provider[], prefix: string): Provider[] {
  const rule = {
    expression: `!user.username.startsWith(${literal(prefix)})`,
    message: `users of the provider are no users of the provider with the prefix ${prefix}`,
  };
  return providers.map((provider) =>
    userPrefixOf(provider) === ''
      ? { ...provider, userValidationRules: [...provider.userValidationRules, rule] }
      : provider,
  );
}

/** Returns a string literal of the Common Expression Language. This language accepts all escapes of JSON. */
export function literal(text: string): string {
  return JSON.stringify(text);
}
