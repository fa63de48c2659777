/** Which namespaces Berth serves, as far as the command knows. */
import { DEFAULT_NAMESPACE, NAMESPACE_PREFIX } from '../../api/v1alpha1/names.ts';

export function isServed(name: string): boolean {
  return name === DEFAULT_NAMESPACE || name.startsWith(NAMESPACE_PREFIX);
}
