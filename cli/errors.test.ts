import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { ApiError, CredentialError } from '../kube/errors.ts';
import {
  certificateMistake,
  CommandError,
  described,
  EXIT,
  explained,
  Interrupted,
  withLogin,
} from './errors.ts';

function refusal(status: number, message: string): ApiError {
  return new ApiError(message, { status, reason: '' });
}

const NAMESPACE_ADMIN = /\. Ask a cluster admin for the role berth-role-namespace-admin$/;

it.each([
  [refusal(401, 'x'), EXIT.denied, /^Unauthorized: .*Sign in again$/],
  [refusal(403, 'vms is forbidden: User "a" cannot list'), EXIT.denied, /cannot list\. Ask an admin/],
  [refusal(403, 'pods "a" is forbidden: User "a" cannot get'), EXIT.denied, /cannot get\. Ask an admin/],
  [
    refusal(403, 'nodes is forbidden: User "a" cannot list resource "nodes" at the cluster scope'),
    EXIT.denied,
    /at the cluster scope\. Only cluster admins have this right$/,
  ],
  [
    refusal(
      403,
      'namespaces is forbidden: User "a" cannot create resource "namespaces" at the cluster scope',
    ),
    EXIT.denied,
    NAMESPACE_ADMIN,
  ],
  [
    refusal(
      403,
      'namespaces "b" is forbidden: User "a" cannot delete resource "namespaces" in the namespace "b"',
    ),
    EXIT.denied,
    NAMESPACE_ADMIN,
  ],
  [
    refusal(403, 'hosts.berth.dev is forbidden: User "a" cannot update resource "hosts/namespace"'),
    EXIT.denied,
    NAMESPACE_ADMIN,
  ],
  [refusal(403, 'pods "a" is forbidden: exceeded quota'), EXIT.failed, /exceeded quota$/],
  [refusal(404, 'the server could not find the requested resource'), EXIT.notFound, /not installed there/],
  [refusal(404, 'vms "a" not found'), EXIT.notFound, /^vms "a" not found$/],
  [refusal(502, 'bad gateway'), EXIT.noAnswer, /^bad gateway$/],
  [refusal(503, 'busy\u001b[2J'), EXIT.noAnswer, /^busy \[2J$/],
  [Object.assign(new Error('refused'), { code: 'ECONNREFUSED' }), EXIT.noAnswer, /^refused$/],
  [new CredentialError('no token'), EXIT.denied, /^no token$/],
  [new CredentialError('The identity provider does not answer', 5), EXIT.noAnswer, /does not answer$/],
  [new Interrupted(), EXIT.interrupted, /^Interrupted$/],
  [new Interrupted('SIGTERM'), EXIT.terminated, /^Interrupted$/],
  [new AggregateError([new CommandError('a', EXIT.notFound), new Error('b')]), EXIT.notFound, /^a\nb$/],
  [new AggregateError([new CommandError('a', EXIT.noAnswer), new Error('a')]), EXIT.noAnswer, /^a$/],
])('describes %s', (error, code, expected) => {
  const { exitCode, message } = described(error);
  expect(exitCode).toBe(code);
  expect(message).toMatch(expected);
});

it.each([
  ['The token expired. Sign in again', 'The token expired. Sign in again: kubectl berth login'],
  [
    'Ended. Sign in again. The provider says no',
    'Ended. Sign in again: kubectl berth login. The provider says no',
  ],
  ['Sign in again and agree', 'Sign in again and agree'],
  // A credential plug-in has already added its own name.
  ['Sign in again: berth login', 'Sign in again: berth login'],
])('adds the command for the sign-in, with the name that the user typed: %s', (message, expected) => {
  expect(withLogin(message, 'kubectl berth')).toBe(expected);
});

it('says why none of the addresses of a server could be reached', () => {
  const causes = ['10.0.0.1', '10.0.0.2'].map((address) => new Error(`connect ECONNREFUSED ${address}:6443`));
  const error = Object.assign(new AggregateError(causes), { code: 'ECONNREFUSED' });
  expect(described(explained(error, 'API server https://a', 'the kubeconfig'))).toEqual({
    exitCode: EXIT.noAnswer,
    message:
      'The API server https://a does not answer: connect ECONNREFUSED 10.0.0.1:6443, connect ECONNREFUSED 10.0.0.2:6443. Check the network and the kubeconfig',
  });
});

it('has exactly the exit codes that the docs describe', () => {
  const page = readFileSync(join(import.meta.dirname, '../docs/how-to/command.md'), 'utf8');
  const [, table = ''] = page.split('## Exit codes');
  const documented = [...table.matchAll(/^\| (\d+) \| /gm)].map(([, code]) => Number(code));
  expect(documented).toEqual(Object.values(EXIT));
});

it('tells the mistake of a certificate without advice about flags of Node.js', () => {
  const message =
    'unable to verify the first certificate; if the root CA is installed locally, try --use-system-ca';
  const error = Object.assign(new Error(message), { code: 'UNABLE_TO_VERIFY_LEAF_SIGNATURE' });
  expect(certificateMistake(error)).toBe('unable to verify the first certificate');
  expect(certificateMistake(new Error(message))).toBeUndefined();
});
