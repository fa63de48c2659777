import { expect, it } from 'vitest';
import type { Image, ImageSpec } from '../api/v1alpha1/image.ts';
import type { ISO } from '../api/v1alpha1/iso.ts';
import type { RunnerSet, RunnerSetSpec } from '../api/v1alpha1/runnerset.ts';
import type { VMConfig, VMConfigSpec } from '../api/v1alpha1/vmconfig.ts';
import { configSchema } from './config.ts';
import { type HostLookups, needsOf, unseenBy } from './needs.ts';

const REGISTRY = { registry: { reference: 'registry.example/guest:1' } };
const IPSW = { url: 'https://example.com/restore.ipsw', sha256: '0'.repeat(64) };

const configs: Record<string, VMConfigSpec> = {
  small: {
    image: 'arm',
    cpu: 1,
    memory: '1Gi',
    diskSize: '20Gi',
    ports: ['8080:80'],
    placement: { tag: 'fast', tagPolicy: 'Required' },
  },
  intel: { image: 'arm', architecture: 'amd64', os: 'Windows' },
  bare: {},
};
const images: Record<string, Partial<ImageSpec> & { status?: Image['status'] }> = {
  arm: { architecture: 'arm64', os: 'MacOS' },
  open: {},
  sized: { status: { size: '50Gi' } },
  installer: { source: { ipsw: IPSW } },
  copy: { source: { copyOf: { name: 'installer' } }, status: { content: { type: 'ipsw', ...IPSW } } },
};

const LOOKUPS: HostLookups = {
  config: (name) => configs[name] && ({ spec: configs[name] } as VMConfig),
  image: (name) => {
    const { status, ...image } = images[name] ?? {};
    return images[name] && ({ spec: { source: REGISTRY, ...image }, status } as Image);
  },
  iso: (name) =>
    name === 'setup' ? ({ spec: { source: REGISTRY, architecture: 'amd64' } } as ISO) : undefined,
};

type SetSpec = Pick<RunnerSetSpec, 'configRef' | 'template'>;

/** Returns what the VMs of a set need, if these objects exist and the operator has these default values. */
function needs(spec: SetSpec, defaults: object = {}) {
  return needsOf({ spec } as RunnerSet, LOOKUPS, configSchema.parse({ defaults }));
}

const DEFAULTS = {
  cpu: 2,
  memory: '4Gi',
  disk: '2Gi',
  ports: [],
  architecture: undefined,
  os: undefined,
  placement: {},
  sharesDisk: false,
};

it.each<[string, Parameters<typeof needs>, object]>([
  ['nothing is said', [{ template: { spec: { image: 'registry.example/guest:1' } } }], {}],
  ['the Image says nothing', [{ template: { spec: { image: 'open' } } }], {}],
  [
    'only the Image says it',
    [{ template: { spec: { image: 'arm' } } }],
    { architecture: 'arm64', os: 'MacOS' },
  ],
  ['the ISO says it', [{ template: { spec: { iso: 'setup' } } }], { architecture: 'amd64' }],
  [
    'the VMConfig says it beside its Image',
    [{ configRef: { name: 'intel' } }],
    { architecture: 'amd64', os: 'Windows' },
  ],
  [
    'the template says it beside its VMConfig',
    [{ template: { spec: { configRef: { name: 'intel' }, architecture: 'arm64', memory: '2Gi' } } }],
    { architecture: 'arm64', os: 'Windows', memory: '2Gi' },
  ],
  [
    'the template has another image than its VMConfig',
    [{ template: { spec: { configRef: { name: 'small' }, image: 'open' } } }],
    {
      cpu: 1,
      memory: '1Gi',
      disk: '4Gi',
      ports: ['8080:80'],
      placement: { tag: 'fast', tagPolicy: 'Required' },
    },
  ],
  [
    'the template has another tag than its VMConfig',
    [{ template: { spec: { configRef: { name: 'small' }, placement: { tag: 'large' } } } }],
    {
      cpu: 1,
      memory: '1Gi',
      disk: '4Gi',
      ports: ['8080:80'],
      architecture: 'arm64',
      os: 'MacOS',
      placement: { tag: 'large' },
    },
  ],
  [
    'the size of the Image is known',
    [{ template: { spec: { image: 'sized', diskSize: '20Gi' } } }],
    { disk: '10Gi' },
  ],
  [
    'the operator has a size of disks',
    [{ template: { spec: { image: 'open' } } }, { diskSize: '30Gi', diskRequest: '90Gi' }],
    { disk: '6Gi' },
  ],
  [
    'the operator assumes a size of unknown disks',
    [{ template: { spec: { image: 'open' } } }, { diskRequest: '90Gi' }],
    { disk: '18Gi' },
  ],
  [
    'the image installs macOS',
    [{ template: { spec: { image: 'installer' } } }],
    { architecture: 'arm64', os: 'MacOS' },
  ],
  [
    'the image is a copy of one that installs macOS',
    [{ template: { spec: { image: 'copy' } } }],
    { architecture: 'arm64', os: 'MacOS' },
  ],
  [
    'the operator has default values',
    [
      { configRef: { name: 'bare' } },
      { image: 'arm', architecture: 'amd64', os: 'Linux', cpu: 8, memory: '16Gi' },
    ],
    { architecture: 'arm64', os: 'MacOS', cpu: 8, memory: '16Gi' },
  ],
  [
    'the VMConfig is missing',
    [{ configRef: { name: 'none' } }, { architecture: 'amd64' }],
    { architecture: 'amd64' },
  ],
])('VMs of a set need what the operator will give them if %s', (_name, [spec, defaults], expected) => {
  expect(needs(spec, defaults)).toEqual({ ...DEFAULTS, ...expected });
});

it.each<[SetSpec, string | undefined]>([
  [{ configRef: { name: 'small' } }, undefined],
  [{ template: { spec: { image: 'registry.example/guest:1' } } }, undefined],
  [{ configRef: { name: 'none' } }, 'VMConfig none'],
  [{ template: { spec: { configRef: { name: 'small' }, image: 'lost' } } }, 'Image lost'],
  [{ template: { spec: { iso: 'lost' } } }, 'ISO lost'],
  [{ configRef: { name: 'bare' } }, 'Image usual'],
])('of the objects that %j names, %s is not seen', (spec, unseen) => {
  const config = configSchema.parse({ defaults: { image: 'usual' } });
  expect(unseenBy({ spec } as RunnerSet, LOOKUPS, config)).toBe(unseen);
});
