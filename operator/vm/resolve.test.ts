import { describe, expect, it } from 'vitest';
import { VM_FIELD_ROWS } from '../../api/v1alpha1/fields.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { RegistryCredential } from '../../api/v1alpha1/registrycredentials.ts';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import type { VMConfigSpec } from '../../api/v1alpha1/vmconfig.ts';
import { sampleValues } from '../../test/support/vmfields.ts';
import { parseConfig } from '../config/config.ts';
import type { ObservedVM } from './observe.ts';
import { isUnresolved, type Resolved, resolve } from './resolve.ts';

const config = parseConfig({ defaults: { architecture: 'amd64', os: 'Linux' } }, 'test');

const MISTAKES = ['Entry old is ignored'];

const INSTALLER: ISO = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'ISO',
  metadata: { name: 'installer', namespace: 'platform-default' },
  spec: {
    source: { registry: { reference: 'registry.example/team/installer:1' } },
    architecture: 'arm64',
    os: 'Windows',
    imagePullSecrets: [{ name: 'regcred' }],
  },
};

function resolved(
  spec: VMSpec,
  vmConfig?: VMConfigSpec,
  known: RegistryCredential[] = [],
  others: Partial<ObservedVM['lookups']> = {},
): Resolved {
  const vm = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name: 'vm', namespace: 'platform-ci' },
    spec,
  };
  const iso = (name: string) => (name === 'installer' ? INSTALLER : undefined);
  const credentials = () => ({ credentials: known, mistakes: MISTAKES });
  const metadata = { name: 'shared', namespace: 'platform-ci' };
  const lookups = {
    vmConfig: () => vmConfig && { metadata, spec: vmConfig },
    image: () => undefined,
    iso,
    credentials,
    ...others,
  };
  const result = resolve({ vm, lookups, config } as unknown as ObservedVM);
  if (isUnresolved(result)) {
    throw new Error(result.message);
  }
  return result;
}

describe('a VM of an IPSW', () => {
  const ipsw = { url: 'https://images.example/restore.ipsw', sha256: 'a'.repeat(64) };
  const image = (): Image => ({
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Image',
    metadata: { name: 'sequoia', namespace: 'platform-ci' },
    spec: { source: { ipsw } },
  });

  it('is macOS for arm64 with a display of 1920x1080 at 96 DPI and a disk of 64 GiB, if nobody asks for others', () => {
    expect(resolved({ image: 'sequoia' }, undefined, [], { image })).toMatchObject({
      os: 'MacOS',
      architecture: 'arm64',
      displayWidth: 1920,
      displayHeight: 1080,
      displayDPI: 96,
      imageSizeBytes: 64n * 1024n ** 3n,
      image: { source: { type: 'ipsw', ...ipsw } },
    });
  });

  it.each([{ os: 'Linux' }, { architecture: 'amd64' }] as const)('is refused with %j', (spec) => {
    const deploy = () => resolved({ image: 'sequoia', ...spec }, undefined, [], { image });
    expect(deploy).toThrow(/An IPSW installs macOS for arm64.*Create the VM again/);
  });
});

describe('a VM that names an ISO', () => {
  it('has its architecture, os and pull secrets', () => {
    expect(resolved({ iso: 'installer' })).toMatchObject({
      architecture: 'arm64',
      os: 'Windows',
      imagePullSecrets: [{ name: 'regcred' }],
    });
  });

  it('takes its own values first, and those of the operator if nobody else has them', () => {
    const own: VMSpec = { architecture: 'amd64', imagePullSecrets: [{ name: 'own' }] };
    expect(resolved({ iso: 'installer', ...own })).toMatchObject({ ...own, os: 'Windows' });
    expect(resolved({ iso: 'registry.example/other:1' })).toMatchObject({
      architecture: 'amd64',
      os: 'Linux',
      imagePullSecrets: [],
    });
  });
});

const SHA256 = 'a'.repeat(64);

describe('a VM that names an image of another namespace', () => {
  const image = (url: string, namespace: string): Partial<ObservedVM['lookups']> => ({
    image: () => ({
      ...INSTALLER,
      kind: 'Image',
      metadata: { name: 'golden', namespace },
      spec: { source: { http: { url, sha256: SHA256 } } },
    }),
  });

  it('waits if its Pod would show a URL with a query to users of its own namespace', () => {
    const signed = 'https://files.example/golden.img?signature=1';
    expect(() => resolved({ image: 'golden' }, undefined, [], image(signed, 'platform-default'))).toThrow(
      /cannot use Image golden of the namespace platform-default.*would show this URL to users of another/,
    );
    expect(resolved({ image: 'golden' }, undefined, [], image(signed, 'platform-ci')).image?.source).toEqual({
      type: 'http',
      url: signed,
      sha256: SHA256,
    });
  });

  it('starts from a URL without a query', () => {
    const plain = 'https://files.example/golden.img';
    expect(
      resolved({ image: 'golden' }, undefined, [], image(plain, 'platform-default')).image?.source,
    ).toEqual({
      type: 'http',
      url: plain,
      sha256: SHA256,
    });
  });
});

describe('the credentials of a namespace', () => {
  const at = (registry: string): RegistryCredential => {
    return { scheme: 'https', registry, secretName: `for-${registry}`, allowInsecure: false };
  };
  const known = [at('registry.example'), at('docker.io'), at('registry.example:5000')];

  it('are added to the pull secrets of a VM for the registries of its images alone, after its own', () => {
    const { credentials, imagePullSecrets } = resolved({ iso: 'installer' }, {}, known);
    expect(imagePullSecrets).toEqual([{ name: 'regcred' }, { name: 'for-registry.example' }]);
    expect(credentials).toEqual([at('registry.example')]);
    const hub = resolved({ image: 'team/guest:1' }, {}, known);
    expect(hub.imagePullSecrets).toEqual([{ name: 'for-docker.io' }]);
  });

  it('give the mistakes of other entries only to a VM without a credential', () => {
    expect(resolved({ iso: 'installer' }, {}, known).ignoredEntries).toEqual([]);
    expect(resolved({ image: 'old.example/guest:1' }, {}, known).ignoredEntries).toEqual(MISTAKES);
  });

  it('are named once if the VM names the same Secret', () => {
    const imagePullSecrets = [{ name: 'for-registry.example' }];
    const spec: VMSpec = { image: 'registry.example/guest:1', imagePullSecrets };
    expect(resolved(spec, {}, known).imagePullSecrets).toEqual(imagePullSecrets);
  });
});

it('each field of the placement comes from the VM, or else from its VMConfig', () => {
  const spec: VMSpec = { configRef: { name: 'shared' }, iso: 'installer' };
  const shared = { placement: { tag: 'fast', tagPolicy: 'Required', strategy: 'MostAllocated' } } as const;
  expect(resolved(spec, shared).placement).toEqual(shared.placement);
  const own: VMSpec = { ...spec, placement: { node: 'rack1-7', strategy: 'Default' } };
  expect(resolved(own, shared).placement).toEqual({ ...shared.placement, ...own.placement });
});

it('the policy of a tag in the VMConfig does not apply to the tag of the VM', () => {
  const spec: VMSpec = { configRef: { name: 'shared' }, iso: 'installer', placement: { tag: 'gpu' } };
  const shared = { placement: { tag: 'fast', tagPolicy: 'Required' } } as const;
  expect(resolved(spec, shared).placement).toEqual({ tag: 'gpu' });
});

it('user data comes from the first source that has any, as a text or a Secret', () => {
  const spec: VMSpec = { configRef: { name: 'shared' }, iso: 'installer' };
  const secret = { userDataSecretRef: { name: 'setup', key: 'user-data' } };
  const text = { userData: '#cloud-config' };
  expect(resolved(spec, text)).toMatchObject({ ...text, userDataSecretRef: undefined });
  expect(resolved(spec, secret)).toMatchObject({ ...secret, userData: undefined });
  expect(resolved({ ...spec, ...secret }, text)).toMatchObject({ ...secret, userData: undefined });
  expect(resolved({ ...spec, ...text }, secret)).toMatchObject({ ...text, userDataSecretRef: undefined });
});

it('each value of a VMConfig is the value of a VM that leaves it out', () => {
  const spec: VMSpec = { configRef: { name: 'shared' }, image: 'registry.example/guest:1' };
  const listed: VMConfigSpec = {
    imagePullSecrets: [{ name: 'shared' }],
    architecture: 'arm64',
    os: 'MacOS',
    cpu: 7,
    memory: '7Gi',
    diskSize: '70Gi',
    displayWidth: 1600,
    displayHeight: 900,
    displayDPI: 120,
    vnc: { enabled: false },
    readiness: { type: 'Port', port: 22 },
    hardwareIdentity: 'Dynamic',
    sshAuthorizedKeys: ['ssh-ed25519 shared'],
    userData: '#cloud-config',
    userDataSecretRef: { name: 'setup', key: 'user-data' },
    ports: [':8080'],
    network: { automaticPorts: false },
    placement: { node: 'one', tag: 'fast', tagPolicy: 'Required', strategy: 'MostAllocated' },
  };
  const values = { ...sampleValues(({ isInConfig }) => isInConfig === true, 1), ...listed };
  const fields = VM_FIELD_ROWS.filter(({ type, isInConfig }) => isInConfig && type !== 'image');
  expect(Object.keys(values).toSorted()).toEqual(fields.map(({ name }) => name).toSorted());
  const without = resolved(spec, {});
  for (const [field, value] of Object.entries(values)) {
    const shared = resolved(spec, { [field]: value });
    expect(shared).toEqual(resolved({ ...spec, [field]: value }, {}));
    expect(shared).not.toEqual(without);
  }
});

it('the SSH keys of a VM replace those of its VMConfig, also an empty list', () => {
  const spec: VMSpec = { configRef: { name: 'shared' }, image: 'registry.example/guest:1' };
  const shared = { sshAuthorizedKeys: ['ssh-ed25519 shared'] };
  const own = ['ssh-ed25519 own'];
  expect(resolved({ ...spec, sshAuthorizedKeys: own }, shared).sshAuthorizedKeys).toEqual(own);
  expect(resolved({ ...spec, sshAuthorizedKeys: [] }, shared).sshAuthorizedKeys).toEqual([]);
});

it('the image or ISO of a VMConfig is used by a VM that names neither', () => {
  const spec: VMSpec = { configRef: { name: 'shared' } };
  const { image, iso } = resolved(spec, { image: 'registry.example/guest:1' });
  expect([image?.containerImage, iso]).toEqual(['registry.example/guest:1', undefined]);
  const disc = resolved(spec, { iso: 'installer' });
  expect([disc.image, disc.iso?.name]).toEqual([undefined, 'berth.dev/platform-default/installer']);
});

it('an image and an ISO together come from one source, and are the disk and the ISO of the machine', () => {
  const image = 'registry.example/guest:1';
  const both = { image, iso: 'installer' };
  const iso = 'berth.dev/platform-default/installer';
  for (const found of [resolved(both), resolved({ configRef: { name: 'shared' } }, both)]) {
    expect([found.image?.containerImage, found.iso?.name]).toEqual([image, iso]);
  }
  const desktop = { ...INSTALLER, spec: { ...INSTALLER.spec, imagePullSecrets: [{ name: 'disks' }] } };
  const images = { image: () => desktop as unknown as Image };
  const { imagePullSecrets } = resolved({ image: 'desktop', iso: 'installer' }, undefined, [], images);
  expect(imagePullSecrets).toEqual([{ name: 'disks' }, { name: 'regcred' }]);
  const own = resolved({ configRef: { name: 'shared' }, image: 'registry.example/own:1' }, both);
  expect([own.image?.containerImage, own.iso]).toEqual(['registry.example/own:1', undefined]);
});

it('network mode Bridge is refused until a network driver supports it, from a VM or a VMConfig', () => {
  const image = 'registry.example/guest:1';
  const network = { mode: 'Bridge' } as const;
  expect(() => resolved({ image, network })).toThrow('mode Bridge is not supported yet');
  expect(() => resolved({ image, configRef: { name: 'shared' } }, { network })).toThrow('not supported yet');
});

it('the ports come as one list from the VM, or else from its VMConfig', () => {
  const spec: VMSpec = { configRef: { name: 'shared' }, iso: 'installer' };
  const shared = { ports: ['8080:80', ':22'] };
  expect(resolved(spec, shared).ports).toEqual(shared.ports);
  expect(resolved({ ...spec, ports: [':443'] }, shared).ports).toEqual([':443']);
  expect(resolved({ ...spec, ports: [] }, shared).ports).toEqual([]);
});

it('whether ports are automatic comes from the VM, its VMConfig, or is true', () => {
  const spec: VMSpec = { configRef: { name: 'shared' }, iso: 'installer' };
  expect(resolved(spec, {}).automaticPorts).toBe(true);
  expect(
    resolved({ ...spec, network: { mode: 'NAT' } }, { network: { automaticPorts: false } }).automaticPorts,
  ).toBe(false);
  expect(
    resolved({ ...spec, network: { automaticPorts: true } }, { network: { automaticPorts: false } })
      .automaticPorts,
  ).toBe(true);
});

it("the screen's port of the host comes from the VM or its VMConfig, and needs VNC", () => {
  const spec: VMSpec = { configRef: { name: 'shared' }, iso: 'installer' };
  const shared = { vnc: { hostPort: true } };
  expect(resolved(spec, {}).vncHostPort).toBe(false);
  expect(resolved(spec, shared).vncHostPort).toBe(true);
  expect(resolved({ ...spec, vnc: { hostPort: false } }, shared).vncHostPort).toBe(false);
  expect(resolved({ ...spec, vnc: { enabled: false } }, shared).vncHostPort).toBe(false);
});

describe('the readiness of a VM that asks for none', () => {
  const KEYS = { sshAuthorizedKeys: ['ssh-ed25519 shared'] };

  it.each<[string, VMSpec, VMConfigSpec, string]>([
    ['a guest without keys', {}, {}, 'None'],
    ['keys of the VM', KEYS, {}, 'SSH'],
    ['keys of its VMConfig', {}, KEYS, 'SSH'],
    ['no keys, although its VMConfig has some', { sshAuthorizedKeys: [] }, KEYS, 'None'],
    [
      'keys in cloud-config',
      { userData: '#cloud-config\nssh_authorized_keys:\n- ssh-ed25519 a\n' },
      {},
      'SSH',
    ],
    ['keys of a user in cloud-config', { userData: 'users:\n- {"ssh_authorized_keys": ["a"]}\n' }, {}, 'SSH'],
    ['keys in Ignition', { userData: '{"passwd":{"users":[{"sshAuthorizedKeys":["a"]}]}}' }, {}, 'SSH'],
    ['keys in a comment alone', { userData: '#cloud-config\n# ssh_authorized_keys: []\n' }, {}, 'None'],
    ['another wish', { ...KEYS, readiness: { type: 'None' } }, {}, 'None'],
    ['another wish of its VMConfig', KEYS, { readiness: { type: 'GuestAgent' } }, 'GuestAgent'],
  ])('%s', (_, spec, config, type) => {
    const vm = { image: 'quay.io/a/b:1', configRef: { name: 'config' }, ...spec };
    expect(resolved(vm, config).readiness).toEqual({ type });
  });
});

it('a serial number is refused for a guest with macOS, and has an effect for others', () => {
  const spec = { image: 'registry.example/guest:1', serialNumber: 'C02ABCDEFGH' } as const;
  expect(() => resolved({ ...spec, os: 'MacOS' })).toThrow('Create the VM again without serialNumber');
  expect(resolved({ ...spec, os: 'Linux' }).os).toBe('Linux');
});
