import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { agentVersion, isTooFarApart, nodeVersion, VERSION } from './version.ts';

const NODE_VERSION = nodeVersion('v1.36.3');

const ROOT = join(import.meta.dirname, '..', '..');

it('the version of the release is the same everywhere', () => {
  const text = (file: string): string => readFileSync(join(ROOT, file), 'utf8');
  expect(JSON.parse(text('package.json'))).toMatchObject({ version: VERSION });
  expect(JSON.parse(text('package-lock.json'))).toMatchObject({
    version: VERSION,
    packages: { '': { version: VERSION } },
  });
  expect(text('charts/berth/Chart.yaml')).toContain(`\nversion: ${VERSION}\nappVersion: ${VERSION}\n`);
});

it('the version of a Node has the version of its agent', () => {
  expect(agentVersion(NODE_VERSION)).toBe(VERSION);
  expect(agentVersion('v1.36.3-berth.1.12.0-rc.1')).toBe('1.12.0-rc.1');
  expect(['kwok', 'v1.36.3', '', undefined].map(agentVersion)).toEqual(Array(4).fill(undefined));
});

it.each([
  ['v1.36.3', 'v1.36.3'],
  ['v1.36.12', 'v1.36.3'],
  ['v1.40.0', 'v1.36.3'],
  ['v1.36.1', 'v1.36.1'],
  ['v1.33.13', 'v1.33.13'],
  ['v1.34.1-gke.1829001', 'v1.34.1'],
  ['v1.33.5+k3s1', 'v1.33.5'],
  ['unknown', 'v1.36.3'],
])('the Node of a host of API server %s has a version that is not above it: %s', (server, version) => {
  expect(nodeVersion(server)).toBe(`${version}-berth.${VERSION}`);
  expect(agentVersion(nodeVersion(server))).toBe(VERSION);
});

it('a version that no agent writes is no version, with any length', () => {
  const long = `v1.36.3-berth.1.2.${'0'.repeat(100)}`;
  const repeated = `${'-berth.1.1.'.repeat(40_000)}\n`;
  expect([long, repeated, `${NODE_VERSION}\n`].map(agentVersion)).toEqual(Array(3).fill(undefined));
});

it.each([
  ['1.4.9', false],
  ['1.5.0', false],
  ['1.6.0-rc.1', false],
  ['1.3.0', true],
  ['1.7.0', true],
  ['2.5.0', true],
  ['0.5.0', true],
])('an agent of %s beside an operator of 1.5.2 is too far apart: %s', (version, expected) => {
  expect(isTooFarApart(version, '1.5.2')).toBe(expected);
});
