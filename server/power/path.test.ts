import { expect, it } from 'vitest';
import { parsePowerTarget, partsOfTarget, type PowerTarget } from './path.ts';

const list: PowerTarget = { kind: 'list' };

it.each([
  ['/core/api/servers', list],
  ['/core/api/servers/', list],
  ['//core/api//servers', list],
  ['https://host:8444/core/api/servers', list],
  ['/core/api/servers?refresh=1', list],
  ['/core/api/servers/a', { kind: 'server', id: 'a' }],
  ['/core/api/servers/2001:db8::1', { kind: 'server', id: '2001:db8::1' }],
  ['/core/api/servers/2001%3Adb8%3A%3A1/', { kind: 'server', id: '2001:db8::1' }],
  ['/core/api/servers/a/On', { kind: 'action', id: 'a', action: 'On' }],
  ['/core/api/servers/a/oFF', { kind: 'action', id: 'a', action: 'Off' }],
  ['/core/api/servers/a/REBOOT/?x', { kind: 'action', id: 'a', action: 'Reboot' }],
  // A slash in a part does not begin another part, and nothing is normalized.
  ['/core/api/servers/a%2FOn', { kind: 'server', id: 'a/On' }],
  ['/core/api/servers/b/../a', undefined],
  ['/core/api/servers/..', { kind: 'server', id: '..' }],
] as const)('reads %s', (target, expected) => {
  const parts = partsOfTarget(target);
  if (expected === undefined) {
    expect(() => parsePowerTarget(parts)).toThrow('There is no such path');
  } else {
    expect(parsePowerTarget(parts)).toEqual(expected);
  }
});

it.each([
  ['/', 404],
  ['*', 404],
  ['/core/api', 404],
  ['/core/api/server', 404],
  ['/Core/api/servers', 404],
  ['/core/api/servers/a/On/now', 404],
  ['/core/api/servers/a/Explode', 400],
  ['/core/api/servers/a/Onn', 400],
  ['/core/api/servers/%zz', 400],
  ['/core/api/servers/%ff', 400],
  [`/core/api/servers/${'a'.repeat(254)}/On`, 404],
])('refuses %s with %i', (target, status) => {
  expect(() => parsePowerTarget(partsOfTarget(target))).toThrow(expect.objectContaining({ status }));
});
