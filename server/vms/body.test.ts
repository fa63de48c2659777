import { expect, it } from 'vitest';
import { vmDeployBody, vmDeployQuery } from '../../api/http/vm.ts';
import { VM_DIALECT } from '../dialect/fields.ts';
import { normalizeBody, translateBody } from '../http/bodies.ts';
import { vmOf } from '../../api/http/vmspec.ts';

const SCHEMA = vmDeployBody(240);

function vm(body: object) {
  const read = translateBody(body, VM_DIALECT).body;
  return vmOf(SCHEMA.parse(normalizeBody(SCHEMA, read)), 'platform-a');
}

it('makes the fields of a VM, from keys of any letter case', () => {
  const body = {
    IMAGE: 'ghcr.io/berth/base:26',
    name: 'mac',
    cpu: 4,
    memory: 4.8,
    node: 'host-1',
    tag: 'fast',
    tagRequired: true,
    scheduler: 'most-allocated',
    reservedPorts: '8080:80, 5353:53/UDP,',
    timeout: 1440,
    activeDeadlineSeconds: 3600,
    ttlSecondsAfterFinished: 600,
    displayDpi: 96,
    vncConsole: false,
    systemSerial: 'SERIAL-0001',
    netBoost: true,
    labels: { job: '42' },
  };
  expect(vm(body)).toEqual({
    metadata: { namespace: 'platform-a', name: 'mac', labels: { job: '42' } },
    spec: {
      image: 'ghcr.io/berth/base:26',
      cpu: 4,
      memory: '4915Mi',
      placement: { node: 'host-1', tag: 'fast', tagPolicy: 'Required', strategy: 'MostAllocated' },
      ports: ['8080:80', '5353:53/UDP'],
      deployTimeoutSeconds: 86_400,
      activeDeadlineSeconds: 3600,
      ttlSecondsAfterFinished: 600,
      displayDPI: 96,
      vnc: { enabled: false },
      serialNumber: 'SERIAL-0001',
    },
  });
});

it('refuses a URL as the image, and says where the URL belongs', () => {
  const { error } = SCHEMA.safeParse({ image: 'https://quay.io/team/image:1' });
  expect(error?.issues.map(({ path, message }) => [path, message])).toEqual([
    [
      ['image'],
      'must not contain ://. Write an OCI reference without https://, or name an Image whose source.http has the URL',
    ],
  ]);
});

it.each([
  [{ vmConfig: 'c' }, { generateName: 'vm-' }],
  [{ vmConfig: 'c', name: '', shouldGenerateName: true }, { generateName: 'vm-' }],
  [{ vmConfig: 'c', name: 'ci', shouldGenerateName: true }, { generateName: 'ci-' }],
  [{ vmConfig: 'c', name: 'ci', shouldGenerateName: false }, { name: 'ci' }],
])('names a VM: %j', (body, name) => {
  expect(vm(body)).toMatchObject({ metadata: name, spec: { configRef: { name: 'c' } } });
});

it.each([
  { vmMetadata: { items: [{ key: 'a', value: '1' }] } },
  { vm_metadata: { a: '1' } },
  { CUSTOMVMMetadata: { a: '1' }, vmMetadata: null },
  { vm_metadata: { a: '1' }, customVMMetadata: { a: '1' } },
])('reads the values for the guest from %j', (metadata) => {
  expect(vm({ vmConfig: 'c', ...metadata }).spec.guestMetadata).toEqual({ a: '1' });
});

it('refuses two values of the metadata, under two names', () => {
  expect(() => vm({ vmConfig: 'c', vm_metadata: { a: '1' }, VMMetadata: { a: '2' } })).toThrow(
    'vmMetadata: must be the only one of vmMetadata, vm_metadata, customVMMetadata',
  );
});

it('warns of a field that other platforms have and that has no effect, unless it asks for nothing', () => {
  const { body, warnings } = translateBody({ netboost: true, LegacyIO: false, cpu: 1 }, VM_DIALECT);
  expect(body).toEqual({ cpu: 1 });
  expect(warnings).toEqual([
    'netboost has no effect. The hosts choose the drivers of machines by themselves',
  ]);
});

it('gives a guest its keys, user data, disk and readiness', () => {
  const fields = {
    architecture: 'arm64',
    diskSize: '40Gi',
    readiness: { type: 'Port', port: 80 },
    sshAuthorizedKeys: [`ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA${'A'.repeat(40)} ada`],
    userDataSecretRef: { name: 'setup', key: 'user-data' },
  };
  expect(vm({ image: 'a', ...fields, vncHostPort: true }).spec).toEqual({
    image: 'a',
    ...fields,
    vnc: { hostPort: true },
  });
});

it.each([
  {},
  { image: 'a', userData: 'a', userDataSecretRef: { name: 'a', key: 'b' } },
  { image: 'a', userDataSecretRef: 'plain text' },
  { image: 'a', sshAuthorizedKeys: ['-----BEGIN OPENSSH PRIVATE KEY-----'] },
  { image: 'a', name: 'Upper' },
  { image: 'a', name: '1st' },
  { image: 'a', name: 'x'.repeat(64) },
  { image: 'a', name: 'x'.repeat(58), shouldGenerateName: true },
  { image: 'a', reservedPorts: '80' },
  { image: 'a', timeout: 1441 },
  { image: 'a', cpu: -1 },
  { image: 'a', displayWidth: 319 },
  { image: 'a', displayDPI: 241 },
  { image: 'a', gpuPassthrough: true },
  { image: 'a', scheduler: 'fastest' },
  { image: 'a', tagRequired: true },
  { vmConfig: 'c', tag: '', tagRequired: true },
])('refuses %j', (body) => {
  expect(SCHEMA.safeParse(normalizeBody(SCHEMA, body)).success).toBe(false);
});

it('accepts an image and an ISO together', () => {
  expect(vm({ image: 'a', iso: 'b' }).spec).toEqual({ image: 'a', iso: 'b' });
});

it.each([
  [{ waitFor: 'ready' }, 'waitFor'],
  [{ whenFull: 'fail' }, 'whenFull'],
])('refuses %j of a request that does not wait, because it would have no effect', (query, field) => {
  const { error } = vmDeployQuery.safeParse({ ...query, wait: 'false' });
  expect(error?.issues).toMatchObject([{ path: [field], message: expect.stringContaining('wait') }]);
  expect(vmDeployQuery.safeParse(query).success).toBe(true);
});

it('deletes an ended VM at once if the client gives zero seconds', () => {
  expect(vm({ image: 'a', ttlSecondsAfterFinished: 0 }).spec).toEqual({
    image: 'a',
    ttlSecondsAfterFinished: 0,
  });
});

it('takes zero, null and an empty text as not given', () => {
  const body = { image: 'a', cpu: 0, memory: 0.0, timeout: 0, displayWidth: 0, tag: '', vmConfig: null };
  expect(vm(body).spec).toEqual({ image: 'a' });
});
