import { expect, it } from 'vitest';
import { ApiError, isRefused } from './errors.ts';

const WEBHOOK = 'admission webhook "policies.example" denied the request';

it.each([
  [403, 'pods "x" is forbidden: exceeded quota: small, requested: pods=1', true],
  [403, `${WEBHOOK}: use our registry`, true],
  [400, `${WEBHOOK}: use our registry`, true],
  [422, `${WEBHOOK} without explanation`, true],
  [403, 'pods is forbidden: User "system:serviceaccount:berth-system:berth-operator" cannot create', false],
  [403, 'rolebindings.rbac.authorization.k8s.io "x" is forbidden: User "ann" cannot get resource', false],
  [400, 'the body of the request was in an unknown format', false],
  [500, 'Internal error occurred: failed calling webhook "policies.example": connection refused', false],
])('status %i with the message "%s" is a refusal of admission: %s', (status, message, expected) => {
  expect(isRefused(new ApiError(message, { status, reason: '' }))).toBe(expected);
});
