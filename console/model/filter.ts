/** The filter of VMs: words that a person types, for example `phase:Pending image:macos alice`. */
import type { VM } from '../../api/v1alpha1/vm.ts';
import { phaseOf } from '../../actions/diagnosis.ts';
import { imageOf, ownerOf } from './vms.ts';

/** Returns the texts of a VM in which a word with this key is looked for. */
const FIELDS = new Map<string, (vm: VM) => readonly string[]>([
  ['name', ({ metadata }) => [metadata.name]],
  ['namespace', ({ metadata }) => [metadata.namespace ?? '']],
  ['phase', (vm) => [phaseOf(vm)]],
  ['host', ({ status }) => [status?.nodeName ?? '']],
  ['image', (vm) => [imageOf(vm)]],
  ['owner', (vm) => [ownerOf(vm)]],
  ['label', labelsOf],
]);

/** Keys that a word can begin with, for the help beside the filter. */
export const FILTER_KEYS: readonly string[] = [...FIELDS.keys()];

/** Longest filter that is used. People type less, and an address can have anything. */
const FILTER_LENGTH = 500;

function labelsOf({ metadata }: VM): string[] {
  return Object.entries(metadata.labels ?? {}).map(([key, value]) => `${key}=${value}`);
}

/**
 * Returns a function that reports whether a VM fits all words of the text. A word `key:value` looks in one field, and any other word in all
 * fields. The letter case does not matter.
 */
export function vmFilter(text: string): (vm: VM) => boolean {
  const terms = text.slice(0, FILTER_LENGTH).toLowerCase().split(/\s+/).filter(Boolean);
  const tests = terms.map((term) => {
    const colon = term.indexOf(':');
    const field = colon < 0 ? undefined : FIELDS.get(term.slice(0, colon));
    const wanted = field === undefined ? term : term.slice(colon + 1);
    const fields = field === undefined ? [...FIELDS.values()] : [field];
    return (vm: VM) => fields.some((read) => read(vm).some((value) => value.toLowerCase().includes(wanted)));
  });
  return (vm) => tests.every((fits) => fits(vm));
}
