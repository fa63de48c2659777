import { expect, test } from 'vitest';
import { portRulesSchema, whyNotReservable } from './ports.ts';

test.each([22, 1023, 2379, 2380, 6443, 10_250, 10_255, 10_259, 10_350, 30_000, 32_767])(
  'nobody may reserve %i of a host unless the settings say so',
  (port) => {
    expect(whyNotReservable(portRulesSchema.parse({}), port)).toMatch(
      new RegExp(`^port ${port} is .*ports\\.`),
    );
    const allowing = portRulesSchema.parse({ reservable: [String(port)], denied: [] });
    expect(whyNotReservable(allowing, port)).toBeUndefined();
  },
);

test.each([1024, 2378, 2381, 6442, 8822, 29_999, 32_768, 65_535])('%i of a host may be reserved', (port) => {
  expect(whyNotReservable(portRulesSchema.parse({}), port)).toBeUndefined();
});

test('both lists can be set, and denied ports win', () => {
  const rules = portRulesSchema.parse({ reservable: ['80', '8000-8999'], denied: ['8443'] });
  const refused = [79, 80, 81, 8000, 8443, 8999, 9000, 6443].filter((port) => whyNotReservable(rules, port));
  expect(refused).toEqual([79, 81, 8443, 9000, 6443]);
});

test.each(['0', '65536', '9-8', '1-2-3', 'ssh', '', '80-'])('%j is no range of ports', (text) => {
  expect(portRulesSchema.safeParse({ reservable: [text] }).success).toBe(false);
});
