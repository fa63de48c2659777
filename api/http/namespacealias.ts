/** Translates names of namespaces whose prefix is fixed in the code of clients, for the HTTP API and the `berth` command. */

/** Rest of a client's name for the default namespace. The alias of the prefix comes before it. */
const DEFAULT = 'default';

interface AliasNames {
  /** Returns the real name of the namespace that a client names. */
  readonly real: (name: string) => string;
  /** Returns the name that a client with the alias gets for a namespace. */
  readonly shown: (name: string) => string;
}

/**
 * Returns the functions that translate names. `alias` stands for the prefix, and `alias` followed by `default` for the default namespace.
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
