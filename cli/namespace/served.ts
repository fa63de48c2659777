/** Decides from the name of a namespace whether Berth serves the namespace. */
import { DEFAULT_NAMESPACE, NAMESPACE_PREFIX } from '../../api/v1alpha1/names.ts';

export function isServed(name: string): boolean {
  return name === DEFAULT_NAMESPACE || name.startsWith(NAMESPACE_PREFIX);
}
