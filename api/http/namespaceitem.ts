/**
 * Shows namespaces, gives the labels of a new namespace, and checks whether a namespace is still used. Also translates between the real names
 * of namespaces and the names that clients use. Some clients have a fixed prefix in their code. This prefix is called the alias, and stands
 * for the prefix of the real names. The HTTP API and the `berth` command use this code.
 */
import { CUSTOM_PODS_LABEL } from '../v1alpha1/names.ts';
import type { NamespaceItem } from './namespace.ts';

/** The message of a refusal names at most this number of hosts, and at most this number of VMs. */
export const NAMED = 5;

interface Named {
  readonly metadata: { readonly name: string; readonly labels?: Readonly<Record<string, string>> };
}

export function namespaceItem({ metadata: { name, labels } }: Named): NamespaceItem {
  return { name, customPods: labels?.[CUSTOM_PODS_LABEL] === 'true' };
}

/** Returns the labels of a new namespace. */
export function namespaceLabels({ customPods }: { customPods: boolean }): Record<string, string> {
  return {
    // The Pods of machines use host ports, which only the Pod security level "privileged" allows. Admission policies restrict the Pods of
    // users to the level "baseline".
    'pod-security.kubernetes.io/enforce': 'privileged',
    ...(customPods ? { [CUSTOM_PODS_LABEL]: 'true' } : {}),
  };
}

/**
 * Returns a message if the namespace cannot be deleted because it has hosts or VMs. The result is undefined if it has none. If `hidesVMs` is
 * true, the message names no VM, because the caller has no right to see them.
 */
export function stillUsed(
  name: string,
  { hosts, vms, hidesVMs = false }: { hosts: readonly Named[]; vms: readonly Named[]; hidesVMs?: boolean },
): string | undefined {
  const left = [named('hosts', hosts), hidesVMs && vms.length > 0 ? 'VMs' : named('VMs', vms)].filter(
    (text) => text !== undefined,
  );
  return left.length === 0 ? undefined : `Namespace ${name} still has ${left.join(', and ')}`;
}

export function ownNamespace(name: string): string {
  return `Namespace ${name} belongs to Berth and cannot be deleted`;
}

function named(what: string, objects: readonly Named[]): string | undefined {
  const names = objects.slice(0, NAMED).map(({ metadata }) => metadata.name);
  const more = objects.length > NAMED ? ' and more' : '';
  return names.length === 0 ? undefined : `${what} (${names.join(', ')}${more})`;
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
