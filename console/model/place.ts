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
  | {
      readonly page: 'vm';
      readonly namespace: string;
      readonly name: string;
      readonly view?: VMPageView | undefined;
    }
  | {
      readonly page: 'objects';
      /** Name of a kind in addresses, for example `images`. */
      readonly plural: string;
      readonly namespace: string | undefined;
      readonly filter: string;
      /** Whether the list is grouped by the hosts. Only the list of cached images has it. */
      readonly by?: 'host';
    }
  | {
      readonly page: 'deploy';
      readonly namespace: string | undefined;
      /** Name of a VM whose values the form has at first. */
      readonly like?: string;
    }
  | { readonly page: 'access' | 'times'; readonly namespace: string | undefined };

/** What the page of a VM can show instead of its overview. */
export const VM_VIEWS = ['screen', 'console', 'log'] as const;
export type VMPageView = (typeof VM_VIEWS)[number];

/** Reads the place from an address. An address that names no page leads to the fleet. */
export function parsePlace(hash: string): Place {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?', 2);
  const [page = '', ...parts] = path.split('/').map(decode);
  const parameters = new URLSearchParams(query);
  const place = PAGES.get(page)?.(parameters, parts);
  return place ?? { page: 'fleet', namespace: namespaceIn(parameters) };
}

/** Returns the place of each page, from the parameters and the parts after the name of the page. */
const PAGES = new Map<string, (parameters: URLSearchParams, parts: readonly string[]) => Place | undefined>([
  [
    'vms',
    (parameters, [namespace = '', name = '', view]) =>
      namespace === '' || name === ''
        ? {
            page: 'vms',
            namespace: namespaceIn(parameters),
            filter: filterIn(parameters),
            sort: sortIn(parameters),
          }
        : { page: 'vm', namespace, name, view: VM_VIEWS.find((one) => one === view) },
  ],
  [
    'objects',
    (parameters, [plural = '']) =>
      plural === ''
        ? undefined
        : {
            page: 'objects',
            plural,
            namespace: namespaceIn(parameters),
            filter: filterIn(parameters),
            ...(parameters.get('by') === 'host' && { by: 'host' }),
          },
  ],
  [
    'deploy',
    (parameters) => {
      const like = parameters.get('like') || undefined;
      return { page: 'deploy', namespace: namespaceIn(parameters), ...(like !== undefined && { like }) };
    },
  ],
  ['access', (parameters) => ({ page: 'access', namespace: namespaceIn(parameters) })],
  ['times', (parameters) => ({ page: 'times', namespace: namespaceIn(parameters) })],
]);

function namespaceIn(parameters: URLSearchParams): string | undefined {
  return parameters.get('namespace') || undefined;
}

function filterIn(parameters: URLSearchParams): string {
  return parameters.get('filter') ?? '';
}

function sortIn(parameters: URLSearchParams): SortKey {
  return SORT_KEYS.find((key) => key === parameters.get('sort')) ?? 'name';
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
    const view = place.view === undefined ? '' : `/${place.view}`;
    return `#/vms/${encodeURIComponent(place.namespace)}/${encodeURIComponent(place.name)}${view}`;
  }
  const query = new URLSearchParams(parametersOf(place)).toString();
  const path = place.page === 'objects' ? `objects/${encodeURIComponent(place.plural)}` : place.page;
  return `#/${path}${query === '' ? '' : `?${query}`}`;
}

/** Returns the parameters of an address. Those with the usual values are left out. */
function parametersOf(place: Exclude<Place, { page: 'vm' }>): [string, string][] {
  const sort = place.page === 'vms' && place.sort !== 'name' ? place.sort : undefined;
  const parameters: readonly [string, string | undefined][] = [
    ['namespace', place.namespace],
    ['filter', 'filter' in place ? place.filter : undefined],
    ['sort', sort],
    ['by', 'by' in place ? place.by : undefined],
    ['like', 'like' in place ? place.like : undefined],
  ];
  return parameters.flatMap(([name, value]) => (value === undefined || value === '' ? [] : [[name, value]]));
}
