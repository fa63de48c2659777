import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { formSchemas } from '../../api/http/forms.ts';
import { vmDeployBody } from '../../api/http/vm.ts';
import { changesOf, formFields, type FormSchema, labelOf, placeCauses, readForm, textsOf } from './form.ts';

const forms = formSchemas(320) as Record<string, FormSchema>;
const deploy = formFields(forms['deploy'] ?? {});
const fieldAt = (path: string) => deploy.find((field) => field.path === path);

it('has a field for each value of a deployment, with the bounds of the server', () => {
  const body = vmDeployBody(320);
  const roots = new Set(deploy.map(({ path }) => path.split('.')[0]));
  const { gpuPassthrough: _gpu, ...shape } = body.shape;
  expect(roots).toEqual(new Set(Object.keys(shape)));
  expect(fieldAt('cpu')).toMatchObject({ kind: 'integer', minimum: 1, maximum: 256 });
  expect(fieldAt('displayDPI')).toMatchObject({ minimum: 60, maximum: 320 });
  expect(fieldAt('architecture')).toMatchObject({ kind: 'choice', choices: ['amd64', 'arm64'] });
  expect(fieldAt('readiness.port')).toMatchObject({ kind: 'integer', maximum: 65_535, isRequired: false });
  expect([
    ['userData', 'paragraph'],
    ['image', 'text'],
    ['diskSize', 'text'],
    ['aliveUntil', 'time'],
    ['tagRequired', 'flag'],
    ['sshAuthorizedKeys', 'lines'],
    ['labels', 'pairs'],
    ['vmMetadata', 'pairs'],
  ]).toEqual(
    [
      'userData',
      'image',
      'diskSize',
      'aliveUntil',
      'tagRequired',
      'sshAuthorizedKeys',
      'labels',
      'vmMetadata',
    ].map((path) => [path, fieldAt(path)?.kind]),
  );
});

it.each([
  ['cpu', '0', 'must be from 1 to 256'],
  ['cpu', '1.5', 'must be a whole number'],
  ['cpu', 'two', 'must be a number'],
  ['memory', '0.05', 'must be from 0.1 to 16384'],
  ['name', 'x'.repeat(64), 'must have at most 63 characters'],
  ['labels', 'job', 'must have one key=value on each line'],
  ['aliveUntil', 'tomorrow', 'must be a date and a time'],
])('finds the mistake in %s %s', (path, text, mistake) => {
  const { mistakes } = readForm(deploy, { [path]: text });
  expect([...mistakes]).toEqual([[path, mistake]]);
});

it('makes the body that the server takes, and the same texts from it', () => {
  const texts = {
    name: 'build-1',
    image: 'registry.example/ubuntu:24.04',
    cpu: '4',
    memory: '7.5',
    vncConsole: 'false',
    'readiness.type': 'Port',
    'readiness.port': '22',
    sshAuthorizedKeys: 'ssh-ed25519 AAAA one\nssh-ed25519 BBBB two',
    labels: 'job=42\nurl=a=b',
    aliveUntil: '2026-12-01T10:20:30',
  };
  const { values, mistakes } = readForm(deploy, texts);
  expect(mistakes.size).toBe(0);
  expect(values).toMatchObject({
    cpu: 4,
    memory: 7.5,
    vncConsole: false,
    readiness: { type: 'Port', port: 22 },
    labels: { job: '42', url: 'a=b' },
  });
  expect(vmDeployBody(320).safeParse({ ...values, sshAuthorizedKeys: undefined }).error).toBeUndefined();
  expect(textsOf(deploy, values)).toEqual(texts);
});

it('accepts the numbers that the server accepts, and no others', () => {
  const schema = vmDeployBody(320);
  const numbers = deploy.filter(({ kind, path }) => kind === 'integer' && !path.includes('.'));
  fc.assert(
    fc.property(fc.constantFrom(...numbers), fc.integer({ min: -10, max: 20_000 }), ({ path }, value) => {
      const { values, mistakes } = readForm(deploy, { image: 'a', [path]: String(value) });
      expect(
        schema.safeParse(values.hasOwnProperty(path) ? values : { image: 'a', [path]: value }).success,
      ).toBe(mistakes.size === 0);
    }),
  );
});

it('tells a missing value that the server requires', () => {
  const snapshot = formFields(forms['snapshot'] ?? {});
  expect([...readForm(snapshot, { vm: 'a' }).mistakes]).toEqual([['name', 'is required']]);
  const claim = formFields(forms['claim'] ?? {});
  expect(readForm(claim, {})).toEqual({ values: {}, mistakes: new Map() });
});

it('finds what changed, and what was emptied', () => {
  const change = formFields(forms['change'] ?? {});
  const before = textsOf(change, { cpu: 2, memory: '4Gi', ttlSecondsAfterFinished: 60 });
  const after = { ...before, cpu: '3', ttlSecondsAfterFinished: '' };
  expect(changesOf(change, before, after)).toEqual({
    set: { cpu: 3 },
    remove: ['ttlSecondsAfterFinished'],
    mistakes: new Map(),
  });
});

it('has exactly the fields of a VM that can be changed', () => {
  expect(formFields(forms['change'] ?? {}).map(({ path }) => path)).toEqual([
    'cpu',
    'memory',
    'diskSize',
    'powerState',
    'restartPolicy',
    'restartRequestedAt',
    'revertRequestedAt',
    'revertTo',
    'terminationGracePeriodSeconds',
    'aliveUntil',
    'activeDeadlineSeconds',
    'ttlSecondsAfterFinished',
  ]);
});

it('shows the mistakes that a server finds at their fields', () => {
  const causes = [
    { field: 'cpu', message: 'must be from 1 to 256' },
    { field: 'sshAuthorizedKeys.1', message: 'is no key' },
    { field: 'spec.labels[a]', message: 'is too long' },
    { field: 'readiness', message: 'needs a type' },
    { field: 'spec.imagePullSecrets', message: 'is unknown' },
    { message: 'is nothing' },
  ];
  const { mistakes, others } = placeCauses(deploy, causes);
  expect([...mistakes]).toEqual([
    ['cpu', 'must be from 1 to 256'],
    ['sshAuthorizedKeys', 'is no key'],
    ['labels', 'is too long'],
    ['readiness.type', 'needs a type'],
  ]);
  expect(others).toEqual(['spec.imagePullSecrets: is unknown', 'is nothing']);
});

it.each([
  ['sshAuthorizedKeys', 'SSH authorized keys'],
  ['vmConfig', 'VM config'],
  ['displayDPI', 'Display DPI'],
  ['userDataSecretRef.name', 'User data secret name'],
  ['ttlSecondsAfterFinished', 'TTL seconds after finished'],
])('labels %s as %s', (path, label) => expect(labelOf(path)).toBe(label));
