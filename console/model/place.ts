/** The place that the page shows, as it stands in the part of the address after `#`. */
import { SORT_KEYS, type SortKey } from './vms.ts';

/** A page, and the namespace to which it is limited. Without a namespace, all namespaces are shown. */
export type Place =
  | { readonly page: 'fleet'; readonly namespace: string | undefined }
  | {
      readonly page: 'vms';
      readonly namespace: string | undefined;
      readonly filter: string;
      readonly sort: SortKey;
    }
  | { readonly page: 'vm'; readonly namespace: string; readonly name: string };

/** Reads the place from an address. An address that names no page leads to the fleet. */
export function parsePlace(hash: string): Place {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?', 2);
  const [page, namespace, name] = path.split('/').map(decode);
  const parameters = new URLSearchParams(query);
  const chosen = parameters.get('namespace') || undefined;
  if (page === 'vms' && namespace && name) {
    return { page: 'vm', namespace, name };
  }
  if (page === 'vms') {
    const sort = SORT_KEYS.find((key) => key === parameters.get('sort')) ?? 'name';
    return { page, namespace: chosen, filter: parameters.get('filter') ?? '', sort };
  }
  return { page: 'fleet', namespace: chosen };
}

/** Decodes a part of a path. A part with a wrong encoding stays as it is. */
function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Returns the address of a place. */
export function formatPlace(place: Place): string {
  if (place.page === 'vm') {
    return `#/vms/${encodeURIComponent(place.namespace)}/${encodeURIComponent(place.name)}`;
  }
  const parameters = new URLSearchParams();
  if (place.namespace !== undefined) {
    parameters.set('namespace', place.namespace);
  }
  if (place.page === 'vms' && place.filter !== '') {
    parameters.set('filter', place.filter);
  }
  if (place.page === 'vms' && place.sort !== 'name') {
    parameters.set('sort', place.sort);
  }
  const query = parameters.toString();
  return `#/${place.page}${query === '' ? '' : `?${query}`}`;
}
