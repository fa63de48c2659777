/**
 * Shows namespaces, and translates between the real names of namespaces and the names that clients use. Some clients have a fixed prefix in their code. This prefix is called the alias, and stands
 * for the prefix of the real names. The HTTP API and the `berth` command use this code.
 */
import { CUSTOM_PODS_LABEL } from '../v1alpha1/names.ts';
import type { NamespaceItem } from './namespace.ts';

interface Named {
  readonly metadata: { readonly name: string; readonly labels?: Readonly<Record<string, string>> };
}

export function namespaceItem({ metadata: { name, labels } }: Named): NamespaceItem {
  return { name, customPods: labels?.[CUSTOM_PODS_LABEL] === 'true' };
}

/** Text after the alias in the name that clients use for the default namespace. */
const DEFAULT = 'default';

interface AliasNames {
  /** Turns the name that a client uses for a namespace into the real name. */
  readonly real: (name: string) => string;
  /** Turns the real name of a namespace into the name that clients use. */
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
