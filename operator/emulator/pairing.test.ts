import { expect, it } from 'vitest';
import type { Node } from '../../kube/core.ts';
import { parseConfig } from '../config/config.ts';
import { hostFault, systemImagesChanged } from './pairing.ts';

const SPEC = { vmName: 'desk' };
const config = parseConfig({}, 'test');

interface Offered {
  offer?: 'True' | 'False' | 'Unknown';
  message?: string;
  images?: string[];
  architecture?: string;
}

function host({ offer, message = '', images = [], architecture = 'arm64' }: Offered): Node {
  const named = images.map((image) => [`emulator.berth.dev/${image}`, '']);
  const labels = { 'kubernetes.io/arch': architecture, ...Object.fromEntries(named) };
  const conditions = offer === undefined ? [] : [{ type: 'berth.dev/Emulators', status: offer, message }];
  return { apiVersion: 'v1', kind: 'Node', metadata: { name: 'mac-1', labels }, status: { conditions } };
}

it.each<[string, Offered]>([
  ['that says nothing about emulators', {}],
  ['whose answer is not known', { offer: 'Unknown' }],
  ['with the system image', { offer: 'True', images: ['android-35.default', 'android-36.google_apis'] }],
])('a host %s may run an Emulator', (_, reported) => {
  expect(hostFault(host(reported), SPEC, config)).toBeUndefined();
});

it.each<[string, Offered, string, string]>([
  ['of another architecture', { architecture: 'amd64' }, 'ArchitectureNotAllowed', 'amd64'],
  [
    'that runs no emulators',
    { offer: 'False', message: 'emulator.sdk is not set' },
    'HostWithoutEmulators',
    'Host mac-1 runs no emulators: emulator.sdk is not set',
  ],
  [
    'without the system image',
    { offer: 'True', images: ['android-35.google_apis', 'android-34.default'] },
    'SystemImageMissing',
    'Host mac-1 has no system image android-36.google_apis; it has android-34.default, android-35.google_apis',
  ],
  ['without any system image', { offer: 'True' }, 'SystemImageMissing', 'it has none'],
])('a host %s may not, and the message says why', (_, reported, reason, says) => {
  const fault = hostFault(host(reported), SPEC, config);
  expect([fault?.reason, fault?.message]).toEqual([reason, expect.stringContaining(says)]);
});

it('the configuration decides which architectures are allowed', () => {
  const both = parseConfig({ emulators: { architectures: ['arm64', 'amd64'] } }, 'test');
  expect(hostFault(host({ architecture: 'amd64' }), SPEC, both)).toBeUndefined();
  expect(() => parseConfig({ emulators: { architectures: [] } }, 'test')).toThrow('emulators.architectures');
});

it('a message names ten system images and counts the rest', () => {
  const images = Array.from({ length: 12 }, (_, index) => `android-${index + 10}.default`);
  const message = hostFault(host({ offer: 'True', images }), SPEC, config)?.message ?? '';
  expect(message).toMatch(/android-10\.default, .*android-19\.default and 2 more$/);
});

it('only another list of system images counts as a change', () => {
  const before = host({ images: ['android-36.default'] });
  expect(systemImagesChanged(before, host({ images: ['android-36.default'], architecture: 'amd64' }))).toBe(
    false,
  );
  expect(systemImagesChanged(before, host({}))).toBe(true);
});
