/** Tests which hosts a namespace has. */
import { expect, it } from 'vitest';
import { hostsOf, isDedicated } from './hosts.ts';
import { DEDICATED_KEY, DEDICATION_LABEL } from './names.ts';

const SHARED = [host('shared-2'), host('shared-1')];
const OWN = host('own', 'platform-ci');
const OTHER = host('other', 'platform-qa');

function host(name: string, owner?: string) {
  return { metadata: { name, labels: owner === undefined ? {} : { [DEDICATED_KEY]: owner } } };
}

function namespace(dedication?: string, name = 'platform-ci') {
  return { metadata: { name, labels: dedication === undefined ? {} : { [DEDICATION_LABEL]: dedication } } };
}

function names(...given: Parameters<typeof hostsOf>): string[] {
  return hostsOf(...given).map(({ metadata }) => metadata.name);
}

it('a namespace without hosts of its own has the shared hosts', () => {
  expect(names(namespace(), [...SHARED, OTHER])).toEqual(['shared-1', 'shared-2']);
  expect(names(namespace('Shared'), [...SHARED, OTHER])).toEqual(['shared-1', 'shared-2']);
});

it('a namespace with hosts of its own has these alone, unless its label allows shared hosts', () => {
  const all = [...SHARED, OWN, OTHER];
  expect(names(namespace(), all)).toEqual(['own']);
  expect(names(namespace('Strict'), all)).toEqual(['own']);
  expect(names(namespace('Shared'), all)).toEqual(['own', 'shared-1', 'shared-2']);
});

it('a namespace that asks for hosts of its own and has none has no hosts', () => {
  expect(names(namespace('Strict'), [...SHARED, OTHER])).toEqual([]);
  expect(isDedicated(namespace('Strict'), SHARED)).toBe(true);
});

it('another value of the label counts as none', () => {
  expect(names(namespace('strict'), [...SHARED, OTHER])).toEqual(['shared-1', 'shared-2']);
  expect(names(namespace(''), [...SHARED, OWN])).toEqual(['own']);
});
