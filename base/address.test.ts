import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { canonicalAddress, sourceOf } from './address.ts';

it.each([
  ['192.0.2.1', '192.0.2.1'],
  ['2001:DB8:0:0:0:0:0:1', '2001:db8::1'],
  ['2001:0db8::0001', '2001:db8::1'],
  ['2001:db8:0:0:1:0:0:1', '2001:db8::1:0:0:1'],
  ['::', '::'],
  ['64:ff9b::192.0.2.1', '64:ff9b::c000:201'],
  ['::ffff:192.0.2.1', '192.0.2.1'],
  ['::FFFF:c000:201', '192.0.2.1'],
])('the address %s has the form %s', (text, form) => {
  expect(canonicalAddress(text)).toBe(form);
});

it.each(['', 'host', '1.2.3', '01.2.3.4', '1.2.3.4.', '1.2.3.4/24', '[::1]', '::1%eth0', '1:2:3', ' ::1'])(
  'the text "%s" is no address',
  (text) => {
    expect(canonicalAddress(text)).toBeUndefined();
  },
);

it('every notation of an IPv6 address has the same form, and the form has itself as form', () => {
  const group = fc.integer({ min: 0, max: 0xff_ff });
  fc.assert(
    fc.property(fc.array(group, { minLength: 8, maxLength: 8 }), (groups) => {
      const long = groups.map((each) => each.toString(16).padStart(4, '0')).join(':');
      const short = groups.map((each) => each.toString(16).toUpperCase()).join(':');
      const form = canonicalAddress(long);
      expect(form).toBeDefined();
      expect(canonicalAddress(short)).toBe(form);
      expect(canonicalAddress(form ?? '')).toBe(form);
    }),
  );
});

it.each([
  ['::1', '::/64'],
  ['2001:db8::', '2001:db8::/64'],
  ['2001:db8::1:0:0:1', '2001:db8::/64'],
  ['2001:db8:0:1::1', '2001:db8:0:1::/64'],
  ['::1.2.3.4', '::/64'],
  ['64:ff9b::1.2.3.4', '64:ff9b::/64'],
  ['192.0.2.1', '192.0.2.1'],
])('the source of %s is %s', (address, expected) => {
  expect(sourceOf(address)).toBe(expected);
});
