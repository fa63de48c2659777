import { expect, it } from 'vitest';
import type { VM } from '../v1alpha1/vm.ts';
import type { VMConfig } from '../v1alpha1/vmconfig.ts';
import { vmDeployBody, vmDetailsSchema } from './vm.ts';
import { vmConfigItemSchema, vmConfigRequestSchema } from './vmconfig.ts';
import { vmConfigItem, vmDetails, vmItem } from './vmitem.ts';
import { vmConfigSpec, vmOf } from './vmspec.ts';

function imageIn(spec: VM['spec'], image?: NonNullable<VM['status']>['image']): string | undefined {
  const metadata = { name: 'mac', namespace: 'platform-default' };
  return vmItem({ metadata, spec, status: { image } } as VM).image;
}

it('shows the whole reference of an image of a registry, and the name of an Image or ISO', () => {
  const reference = 'registry.example:5000/team/desktop:1';
  expect(imageIn({}, { name: 'team/desktop:1', reference })).toBe(reference);
  expect(imageIn({ image: 'sonoma' }, { name: 'sonoma', reference })).toBe('sonoma');
  expect(imageIn({}, { name: 'sonoma', reference: 'berth.dev/platform-default/sonoma@sha256:a' })).toBe(
    'sonoma',
  );
  expect([imageIn({ image: 'sonoma' }), imageIn({ iso: 'disc' })]).toEqual(['sonoma', 'disc']);
});

it('shows the architecture of the VM, or else that of its host', () => {
  const shown = (spec: VM['spec'], nodeName?: string) =>
    vmItem({ metadata: { name: 'mac' }, spec, status: { nodeName } } as VM, (host) => `of ${host}`)
      .architecture;
  expect([shown({ architecture: 'arm64' }, 'mini'), shown({}, 'mini'), shown({})]).toEqual([
    'arm64',
    'of mini',
    undefined,
  ]);
});

it('shows a limited number of labels', () => {
  const shown = (count: number) => {
    const labels = Object.fromEntries(Array.from({ length: count }, (_one, index) => [`a${index}`, '']));
    return Object.keys(vmItem({ metadata: { name: 'mac', labels }, spec: {} } as VM).labels ?? {});
  };
  expect([shown(2), shown(55_000).length]).toEqual([['a0', 'a1'], 64]);
});

it('shows the port for SSH, also if the VM reserves it', () => {
  const shown = (endpoints: NonNullable<VM['status']>['endpoints']) => {
    const { ssh, vnc, reservedPorts } = vmItem({
      metadata: { name: 'mac' },
      spec: {},
      status: { endpoints },
    } as VM);
    return { ssh, vnc, reservedPorts };
  };
  const web = { name: '8080-tcp', protocol: 'TCP', hostPort: 8080, guestPort: 80 };
  const chosen = { name: 'ssh', purpose: 'ssh', protocol: 'TCP', hostPort: 20_000, guestPort: 22 };
  const vnc = { name: 'vnc', purpose: 'vnc', protocol: 'TCP', hostPort: 20_001 };
  expect(shown([web, chosen, vnc])).toEqual({ ssh: 20_000, vnc: 20_001, reservedPorts: '8080:80/tcp' });
  expect(shown([{ ...chosen, name: '8822-tcp', hostPort: 8822 }])).toEqual({
    ssh: 8822,
    vnc: undefined,
    reservedPorts: '8822:22/tcp',
  });
});

it('shows the memory in GiB, and none if it cannot be read', () => {
  const shown = (memory: string) => [
    vmItem({ metadata: { name: 'mac' }, spec: { memory } } as VM).memory,
    vmConfigItem({ metadata: { name: 'big' }, spec: { memory } } as VMConfig).memory,
  ];
  expect([shown('4915Mi'), shown('4.8 GB')]).toEqual([
    ['4.80Gi', 4.8],
    [undefined, undefined],
  ]);
});

it('shows the disk of a VM config as it is written, also as a number', () => {
  for (const diskSize of ['100Gi', 100_000_000_000]) {
    const item = vmConfigItem({ metadata: { name: 'big' }, spec: { diskSize } } as VMConfig);
    expect(vmConfigItemSchema.parse(item)).toMatchObject({ diskSize });
  }
});

it('shows a VM that is being deleted as Terminating, whatever its status says', () => {
  const metadata = { name: 'mac', deletionTimestamp: '2026-01-02T03:04:05Z' };
  expect(vmItem({ metadata, spec: {}, status: { phase: 'Running' } } as VM).status).toBe('Terminating');
});

/** Fields of a body that no item shows, each with its reason. */
const HIDDEN: ReadonlySet<string> = new Set([
  // Only false is accepted.
  'gpuPassthrough',
  // The item has the whole name.
  'shouldGenerateName',
  // Refused in a VM config, because it belongs to a single VM.
  'systemSerial of a VM config',
]);
const MACHINE = {
  image: 'base',
  architecture: 'arm64',
  cpu: 4,
  memory: 1.234375,
  diskSize: '40Gi',
  displayWidth: 1280,
  displayHeight: 800,
  displayDPI: 120,
  readiness: { type: 'Port', port: 80 },
  sshAuthorizedKeys: [`ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA${'A'.repeat(40)} ada`],
  userData: '#cloud-config',
  start: 'Cold',
  node: 'host-1',
  tag: 'fast',
  tagRequired: true,
  scheduler: 'most-allocated',
  vncConsole: true,
  vncHostPort: true,
  reservedPorts: '8080:80,5353:53/UDP',
} as const;
const FROM_ISO = {
  iso: 'disc',
  userDataSecretRef: { name: 'setup', key: 'user-data' },
  tag: 'fast',
  tagRequired: false,
};
const SINGLE = {
  vmConfig: 'small',
  systemSerial: 'SERIAL-0001',
  timeout: 30,
  terminationGracePeriodSeconds: 0,
  aliveUntil: '2030-01-01T00:00:00Z',
  activeDeadlineSeconds: 3600,
  ttlSecondsAfterFinished: 0,
  vmMetadata: { job: '42' },
  labels: { team: 'web' },
} as const;

function shownVM(body: object): object {
  const made = vmOf(vmDeployBody(240).parse(body), 'platform-a');
  return vmDetailsSchema.parse(JSON.parse(JSON.stringify(vmDetails(made as VM)))).request;
}

function shownConfig(body: object): object {
  const { name, namespace, ...request } = vmConfigRequestSchema(240).parse(body);
  const item = vmConfigItem({ metadata: { name, namespace }, spec: vmConfigSpec(request) } as VMConfig);
  return vmConfigItemSchema.parse(JSON.parse(JSON.stringify(item)));
}

it.each([
  [
    'VM',
    vmDeployBody(240),
    [
      { ...MACHINE, ...SINGLE, name: 'mac' },
      { ...FROM_ISO, name: 'pc' },
    ],
    shownVM,
  ],
  [
    'VM config',
    vmConfigRequestSchema(240),
    [
      { ...MACHINE, name: 'mac', namespace: 'platform-a' },
      { ...FROM_ISO, name: 'pc' },
    ],
    shownConfig,
  ],
] as const)('a %s shows each field with which it can be made', (kind, schema, bodies, shown) => {
  for (const body of bodies) {
    expect(shown(body)).toMatchObject(body);
  }
  const tried = new Set(bodies.flatMap((body) => Object.keys(body)));
  const untried = Object.keys(schema.shape).filter((field) => !tried.has(field));
  expect(untried.filter((field) => !HIDDEN.has(field) && !HIDDEN.has(`${field} of a ${kind}`))).toEqual([]);
});
