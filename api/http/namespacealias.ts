/**
 * Translates between the real names of namespaces and the names that clients use. Some clients have a fixed prefix in their code. This
 * prefix is called the alias, and stands for the prefix of the real names. The HTTP API and the `berth` command use this translation.
 */

/** Clients name the default namespace by the alias and this text. */
const DEFAULT = 'default';

interface AliasNames {
  /** Returns the real name of the namespace for which clients use this name. */
  readonly real: (name: string) => string;
  /** Returns the name that clients use for the namespace with this real name. */
  readonly shown: (name: string) => string;
}

/**
 * Returns the functions that translate names. In names that clients use, `alias` stands for `prefix`. The name that clients use for the
 * default namespace is `alias` followed by `default`.
 */
export function aliasNames(
  alias: string,
  namespaces: { readonly prefix: string; readonly default: string },
): AliasNames {
  const { prefix } = namespaces;
  return {
    real: (name) => {
      if (!name.startsWith(alias)) {
        return name;
      }
      const rest = name.slice(alias.length);
      return rest === DEFAULT ? namespaces.default : prefix + rest;
    },
    shown: (name) => {
      if (name === namespaces.default) {
        return alias + DEFAULT;
      }
      return name.startsWith(prefix) ? alias + name.slice(prefix.length) : name;
    },
  };
}
