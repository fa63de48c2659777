import { expect, it } from 'vitest';
import { ApiError } from '../../kube/errors.ts';
import { bodyOf, inFlags, vmFrom } from './body.ts';

it('makes the VM of the flags', () => {
  const flags = {
    image: 'sonoma',
    cpu: 4,
    memory: '4G',
    tag: 'fast',
    tagRequired: true,
    scheduler: 'most-allocated',
    reservePort: ['8080:80', '5353:53/udp'],
    displayDpi: 96,
    vnc: false,
    metadata: { items: '1' },
    timeout: 5,
    activeDeadlineSeconds: 3600,
    ttlSecondsAfterFinished: 0,
  } as const;
  const { metadata, spec } = vmFrom(bodyOf('mac', flags), flags, { namespace: 'platform-a' });
  expect(metadata).toMatchObject({ name: 'mac', namespace: 'platform-a' });
  expect(JSON.parse(JSON.stringify(spec))).toEqual({
    image: 'sonoma',
    cpu: 4,
    memory: '4G',
    placement: { tag: 'fast', tagPolicy: 'Required', strategy: 'MostAllocated' },
    ports: ['8080:80', '5353:53/udp'],
    displayDPI: 96,
    vnc: { enabled: false },
    guestMetadata: { items: '1' },
    deployTimeoutSeconds: 300,
    activeDeadlineSeconds: 3600,
    ttlSecondsAfterFinished: 0,
  });
});

it('refuses --tag-required without --tag, because it would have no effect', () => {
  expect(() => bodyOf('mac', { image: 'sonoma', tagRequired: true })).toThrow('--tag-required needs --tag');
  expect(bodyOf('mac', { image: 'sonoma', tagRequired: false })).toMatchObject({ tag: undefined });
});

it('names the flags of the fields that an older cluster does not have', () => {
  const message =
    'VM in version "v1alpha1" cannot be handled as a VM: strict decoding error: unknown field "spec.displayDPI", unknown field "spec.odd"';
  const words =
    'the cluster does not have this field, because its release of Berth is older than this command';
  expect(inFlags(new ApiError(message, { status: 400, reason: 'BadRequest' }))).toMatchObject({
    message: `--display-dpi: ${words}\nspec.odd: ${words}`,
  });
  const other = new ApiError('the body is no JSON', { status: 400, reason: 'BadRequest' });
  expect(inFlags(other)).toBe(other);
});

it('names the flags of the fields that the API server refuses', () => {
  const causes = [
    {
      field: 'spec.displayWidth',
      message: 'Invalid value: 9: spec.displayWidth in body should be at least 320',
    },
    { field: 'spec.ports[0]', message: 'Invalid value: "x"' },
    { field: 'spec.activeDeadlineSeconds', message: 'Invalid value: 0: must be from 1' },
    { field: 'spec.ttlSecondsAfterFinished', message: 'Invalid value: -1: must be from 0' },
    { field: 'spec.vnc', message: 'is odd' },
  ];
  const error = new ApiError('VM is invalid', { status: 422, reason: 'Invalid', details: { causes } });
  expect(inFlags(error)).toMatchObject({
    message:
      '--display-width: Invalid value: 9: should be at least 320\n--reserve-port: Invalid value: "x"\n--active-deadline-seconds: Invalid value: 0: must be from 1\n--ttl-seconds-after-finished: Invalid value: -1: must be from 0\nspec.vnc: is odd',
  });
});
