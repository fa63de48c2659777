/** Names of namespaces with another prefix, which is fixed in the code of clients. For the HTTP API and the `berth` command. */

/** The alias of the prefix followed by this text is the name of the default namespace. */
const DEFAULT = 'default';

interface AliasNames {
  /** Returns the name of the namespace that a client means. */
  readonly real: (name: string) => string;
  /** Returns the name of a namespace for a client that uses the alias. */
  readonly shown: (name: string) => string;
}

/** Returns the names for the alias of the prefix of namespaces. The alias followed by `default` stands for the default namespace. */
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
