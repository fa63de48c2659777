import { expect, it } from 'vitest';
import type { TartState } from './files.ts';
import { identityState, needsEcid } from './identity.ts';

const STATE = { version: 1, os: 'darwin', base: '/image', logStart: 0, intent: 'run', live: true } as const;

it.each<[Partial<TartState>, boolean, string, string]>([
  [
    { hardwareIdentity: 'Consistent' },
    false,
    'IdentityOfImage',
    'all guests of the image have the same ones',
  ],
  [{ hardwareIdentity: 'Dynamic', ecid: 'own' }, true, 'IdentityNew', 'an ECID that was made for it'],
  [{ hardwareIdentity: 'Consistent', ecid: 'own' }, false, 'IdentityOfHypervisor', 'gets other ones'],
  [
    { os: 'linux', serialNumber: 'CHOSEN-01' },
    false,
    'IdentityOfHypervisor',
    'the serial number CHOSEN-01 nor',
  ],
  [{ os: 'linux' }, false, 'IdentityOfHypervisor', 'sets neither a serial number nor'],
])('a guest with %j has the identity of its VM: %s, %s', (change, ready, reason, part) => {
  const message = expect.stringContaining(part) as string;
  expect(identityState({ ...STATE, ...change })).toMatchObject({ ready, reason, message });
});

it('only a clone with macOS and a dynamic identity needs an ECID of its own', () => {
  expect(needsEcid('darwin', { hardwareIdentity: 'Dynamic' })).toBe(true);
  expect(needsEcid('darwin', { hardwareIdentity: 'Consistent' })).toBe(false);
  expect(needsEcid('linux', { hardwareIdentity: 'Dynamic' })).toBe(false);
});
