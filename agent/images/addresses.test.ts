import { expect, it } from 'vitest';
import { isForbiddenAddress } from './addresses.ts';

it.each([
  '127.0.0.1',
  '169.254.169.254',
  '::1',
  'fe80::1',
  '0.0.0.0',
  '::ffff:127.0.0.1',
  '::ffff:169.254.169.254',
])('%s is an address of the host or its link', (address) => expect(isForbiddenAddress(address)).toBe(true));

it.each(['10.0.0.1', '192.168.1.1', '2001:db8::1', '151.101.1.6'])('%s is not', (address) =>
  expect(isForbiddenAddress(address)).toBe(false),
);
