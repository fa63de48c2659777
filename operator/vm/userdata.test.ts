import { expect, it } from 'vitest';
import { USER_DATA_CONDITION } from '../../api/v1alpha1/names.ts';
import type { Observed } from './observe.ts';
import { userDataReady } from './userdata.ts';

/** Returns the condition `UserDataReady` as status and reason. `said` is the condition of the Pod. */
function conditionOf(spec: object, phase: string, said?: { status: string; reason: string }): string {
  const conditions = said === undefined ? [] : [{ type: USER_DATA_CONDITION, message: 'why', ...said }];
  const observed = { vm: { spec }, pod: { spec: {}, status: { phase, conditions } } } as unknown as Observed;
  const { status, reason } = userDataReady(observed) ?? { status: 'absent', reason: '' };
  return `${status} ${reason}`.trim();
}

const SECRET = { userDataSecretRef: { name: 's', key: 'k' } };

it.each([
  ['is absent for a VM without user data', {}, 'Running', undefined, 'absent'],
  ['is absent until the host has tried to start the VM', SECRET, 'Pending', undefined, 'absent'],
  [
    'is that of the host',
    SECRET,
    'Pending',
    { status: 'False', reason: 'SecretNotFound' },
    'False SecretNotFound',
  ],
  [
    'has no reason that the API server refuses',
    SECRET,
    'Pending',
    { status: 'True', reason: '9' },
    'True Reported',
  ],
  [
    'is Unknown if the host runs the VM and says nothing',
    { userData: 'x' },
    'Running',
    undefined,
    'Unknown NotReported',
  ],
])('UserDataReady %s', (_, spec, phase, said, expected) => {
  expect(conditionOf(spec, phase, said)).toBe(expected);
});
