import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ZodObject } from 'zod';
import type { VMField } from '../../api/v1alpha1/fields.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import { vmKind } from '../../api/v1alpha1/vm.ts';
import { type VMStatus, vmStatusSchema } from '../../api/v1alpha1/vmstatus.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { PUBLIC_KEYS } from '../fixtures/guestdata.ts';
import { sharedCluster } from '../support/cluster.ts';
import { sampleValues } from '../support/vmfields.ts';

let cluster: Cluster;
const namespace = `platform-api-${randomBytes(4).toString('hex')}`;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', namespace, '--wait=false']);
});

type Spec = Record<string, unknown>;

function object(kind: string, name: string, spec: Spec): string {
  return JSON.stringify({ apiVersion: 'berth.dev/v1alpha1', kind, metadata: { name, namespace }, spec });
}

async function apply(manifest: string) {
  return await cluster.kubectl(['apply', '--validate=strict', '-f', '-'], {
    input: manifest,
    allowFailure: true,
  });
}

async function exists(kind: string, name: string): Promise<boolean> {
  const { stdout } = await cluster.kubectl([
    'get',
    kind,
    name,
    '-n',
    namespace,
    '--ignore-not-found',
    '-o',
    'name',
  ]);
  return stdout.trim() !== '';
}

async function expectRefused(kind: string, name: string, spec: Spec, ...says: string[]): Promise<void> {
  const { code, stderr } = await apply(object(kind, name, spec));
  expect(code, 'the API server accepted it').not.toBe(0);
  for (const part of says) {
    expect(stderr).toContain(part);
  }
  expect(await exists(kind, name), 'something was created').toBe(false);
}

async function expectAccepted(kind: string, name: string, spec: Spec): Promise<void> {
  const { code, stderr } = await apply(object(kind, name, spec));
  expect({ code, stderr }).toMatchObject({ code: 0 });
  expect(await exists(kind, name)).toBe(true);
  await cluster.kubectl(['delete', kind, name, '-n', namespace, '--wait=false']);
}

const PORT_RULE = '[<NODE_PORT>]:<VM_PORT>';
const PORT_BOUNDS = 'from 1 to 65535';

/** Specs that are refused, and the parts that the message must have: field, value and bounds. */
const REFUSED_VMS: [string, Spec, ...string[]][] = [
  ['a width of 319', { displayWidth: 319 }, 'spec.displayWidth', '319', 'from 320 to 3840'],
  ['a width of 3841', { displayWidth: 3841 }, 'spec.displayWidth', '3841', 'from 320 to 3840'],
  ['a height of 479', { displayHeight: 479 }, 'spec.displayHeight', '479', 'from 480 to 2160'],
  ['a height of 2161', { displayHeight: 2161 }, 'spec.displayHeight', '2161', 'from 480 to 2160'],
  ['a DPI of 59', { displayDPI: 59 }, 'spec.displayDPI', '59', 'from 60 to 240'],
  ['a DPI of 241', { displayDPI: 241 }, 'spec.displayDPI', '241', 'from 60 to 240'],
  ['a port without a colon', { ports: ['8822'] }, 'spec.ports[0]', '"8822"', PORT_RULE, PORT_BOUNDS],
  ['node port 0', { ports: ['0:22'] }, 'spec.ports[0]', '"0:22"', PORT_RULE, PORT_BOUNDS],
  ['node port 70000', { ports: ['1:1', '70000:22'] }, 'spec.ports[1]', '"70000:22"', PORT_RULE, PORT_BOUNDS],
  ['VM port 65536', { ports: ['22:65536'] }, 'spec.ports[0]', '"22:65536"', PORT_RULE, PORT_BOUNDS],
  ['protocol sctp', { ports: ['8822:22/sctp'] }, 'spec.ports[0]', '"8822:22/sctp"', '/tcp or /udp'],
  ['leading zeros', { ports: ['08822:22'] }, 'spec.ports[0]', '"08822:22"', 'without leading zeros'],
  [
    'the same node port and protocol twice',
    { ports: ['8822:22', '8822:23/TCP'] },
    'spec.ports',
    '8822:22',
    'only once',
  ],
  [
    'the same guest port twice without a node port',
    { ports: [':22', ':23', ':22/TCP'] },
    'spec.ports',
    ':22',
    'only once',
  ],
  ['65 ports', { ports: Array.from({ length: 65 }, (_, n) => `${n + 1}:22`) }, 'spec.ports', '64'],
  ['ports on a bridge', { ports: ['8822:22'], network: { mode: 'Bridge' } }, 'spec.ports', 'NAT'],
  ['negative memory', { memory: '-1Gi' }, 'spec.memory', '-1Gi', 'from 64Mi to 16Ti'],
  ['memory below 64Mi', { memory: '63Mi' }, 'spec.memory', '63Mi', 'from 64Mi to 16Ti'],
  ['a URL as its image', { image: 'https://quay.io/team/image:1' }, 'spec.image', 'must not contain ://'],
  ['memory that is no quantity', { memory: 'much' }, 'spec.memory', 'much', 'from 64Mi to 16Ti'],
  ['no processor', { cpu: 0 }, 'spec.cpu', '0', 'from 1 to 256'],
  ['257 processors', { cpu: 257 }, 'spec.cpu', '257', 'from 1 to 256'],
  ['a disk of nothing', { diskSize: '0' }, 'spec.diskSize', 'from 1Mi to 1Pi'],
  ['an unknown operating system', { os: 'OS2' }, 'spec.os', 'OS2', '"MacOS", "Linux", "Windows"'],
  ['an unknown field', { displayWidht: 800 }, 'unknown field', 'spec.displayWidht'],
  ['an unknown field inside a field', { network: { mod: 'NAT' } }, 'unknown field', 'spec.network.mod'],
  ['a serial number of 7 characters', { serialNumber: 'ABCDEFG' }, 'spec.serialNumber', '{8,12}'],
  ['readiness by port without a port', { readiness: { type: 'Port' } }, 'spec.readiness', 'port is required'],
  ['a nonce that is no time', { restartRequestedAt: 'now' }, 'spec.restartRequestedAt', 'date-time'],
  ['user data twice', { userData: 'x', userDataSecretRef: { name: 's', key: 'k' } }, 'userDataSecretRef'],
];

describe('the API server refuses, with field and bounds in the message, and does not create:', () => {
  it.for(REFUSED_VMS)('a VM with %s', async ([, spec, ...says]) => {
    await expectRefused('VM', 'refused', { image: 'any', ...spec }, ...says);
  });

  it('a VM with neither image, iso nor configRef', async () => {
    await expectRefused(
      'VM',
      'refused',
      { cpu: 2 },
      'spec',
      'at least one of image, iso and configRef must be set',
    );
  });

  it('a VM without spec', async () => {
    const manifest = {
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'VM',
      metadata: { name: 'refused', namespace },
    };
    const { code, stderr } = await apply(JSON.stringify(manifest));
    expect(code).not.toBe(0);
    expect(stderr).toContain('spec');
    expect(await exists('VM', 'refused')).toBe(false);
  });

  it.for([
    ['with a dot', 'a.b'],
    ['of 64 characters', 'a'.repeat(64)],
  ])('a VM with a name %s', async ([, name]) => {
    await expectRefused('VM', name as string, { image: 'any' }, 'metadata.name', 'without dots', '63');
  });

  it('a VMConfig with a name of 51 characters', async () => {
    await expectRefused('VMConfig', 'a'.repeat(51), { image: 'any' }, 'metadata.name', '50');
  });

  it.for([
    ['width', { displayWidth: 319 }, 'spec.displayWidth', 'from 320 to 3840'],
    ['height', { displayHeight: 2161 }, 'spec.displayHeight', 'from 480 to 2160'],
    ['DPI', { displayDPI: 241 }, 'spec.displayDPI', 'from 60 to 240'],
  ] as const)('a VMConfig with a bad display %s', async ([, spec, ...says]) => {
    await expectRefused('VMConfig', 'refused', spec, ...says);
  });

  it.for([
    ['no source', {}, 'exactly one of'],
    ['two sources', { registry: { reference: 'r.example/i' }, empty: { size: '1Gi' } }, 'exactly one of'],
    ['a reference with a scheme', { registry: { reference: 'https://r.example/i' } }, 'must not contain ://'],
    ['a shared file above its root', { sharedFile: { path: 'a/../../b' } }, 'spec.source.sharedFile.path'],
    ['an absolute shared file', { sharedFile: { path: '/etc/passwd' } }, 'spec.source.sharedFile.path'],
    [
      'a URL with a password',
      { http: { url: 'https://user:secret@x.example/a', sha256: 'a'.repeat(64) } },
      'url must not contain a user name or password',
    ],
    ['a download without a checksum', { http: { url: 'https://x.example/a' } }, 'spec.source.http.sha256'],
    [
      'a source of another scheme',
      { http: { url: 'file:///etc/passwd', sha256: 'a'.repeat(64) } },
      'spec.source.http.url',
    ],
  ] as const)('an Image with %s', async ([, source, ...says]) => {
    await expectRefused('Image', 'refused', { source }, ...says);
  });

  it('an ISO that is made from a VM', async () => {
    await expectRefused('ISO', 'refused', { source: { fromVM: { name: 'x' } } }, 'unknown field', 'fromVM');
  });

  it('an Emulator with dots in its name, and one without vmName', async () => {
    await expectRefused('Emulator', 'a.b', { vmName: 'x' }, 'metadata.name', 'without dots');
    await expectRefused('Emulator', 'refused', {}, 'spec.vmName');
  });

  it.for<[string, Spec, ...string[]]>([
    ['memory below 2560Mi', { memory: '2559Mi' }, 'spec.memory', '2559Mi', 'from 2560Mi to 16Ti'],
    ['a platform with a slash', { platform: 'android/36' }, 'spec.platform', 'android/36'],
    ['an unknown exposure', { exposure: 'All' }, 'spec.exposure', '"PairedVM", "Host"'],
  ])('an Emulator with %s', async ([, spec, ...says]) => {
    await expectRefused('Emulator', 'refused', { vmName: 'x', ...spec }, ...says);
  });
});

describe('the API server accepts', () => {
  it.for<[string, Spec]>([
    [
      'ports with a protocol in any case',
      { ports: ['8822:22/UDP', '5000:5000/Tcp', '8822:22', '65535:1/tcp', ':22', ':23', ':22/udp'] },
    ],
    ['the lowest display', { displayWidth: 320, displayHeight: 480, displayDPI: 60 }],
    ['the highest display', { displayWidth: 3840, displayHeight: 2160, displayDPI: 240 }],
    ['the least memory and one processor', { memory: '64Mi', cpu: 1 }],
    ['quantities as numbers', { memory: 1_073_741_824, diskSize: 10_737_418_240 }],
    ['64 ports', { ports: Array.from({ length: 64 }, (_, n) => `${n + 1}:22`) }],
    ['an OCI reference', { image: `registry.example:5000/a/b:1@sha256:${'0'.repeat(64)}` }],
    ['an image and an ISO', { iso: 'disc' }],
    ['a name of 63 characters', {}],
  ])('a VM with %s', async ([title, spec]) => {
    const name = title.startsWith('a name') ? 'a'.repeat(63) : 'accepted';
    await expectAccepted('VM', name, { image: 'any', powerState: 'Stopped', ...spec });
  });

  it('a VM that takes all values from its VMConfig', async () => {
    await expectAccepted('VMConfig', 'config', { image: 'any', iso: 'disc', cpu: 4, displayWidth: 3840 });
    await expectAccepted('VM', 'accepted', { configRef: { name: 'config' } });
  });

  it.for<[string, string, Spec]>([
    ['an Image', 'Image', { source: { http: { url: 'https://x.example/a.qcow2', sha256: 'a'.repeat(64) } } }],
    ['an ISO', 'ISO', { source: { sharedFile: { path: 'isos/a.iso' } } }],
    ['an Emulator', 'Emulator', { vmName: 'x' }],
    ['an ImageCacheEntry', 'ImageCacheEntry', { reference: 'ubuntu', targets: { all: true } }],
    ['a VMSnapshot', 'VMSnapshot', { vmName: 'x' }],
  ])('%s', async ([, kind, spec]) => {
    await expectAccepted(kind, 'accepted', spec);
  });

  it('a VM without adding defaults: the stored VM has only the written fields', async () => {
    await apply(object('VM', 'bare', { image: 'any', network: {}, vnc: {}, placement: {} }));
    const { stdout } = await cluster.kubectl([
      'get',
      'vm',
      'bare',
      '-n',
      namespace,
      '-o',
      'jsonpath={.spec}',
    ]);
    expect(JSON.parse(stdout)).toEqual({ image: 'any', network: {}, vnc: {}, placement: {} });
    await cluster.kubectl(['delete', 'vm', 'bare', '-n', namespace, '--wait=false']);
  });
});

describe('an existing VM', () => {
  const name = 'changing';
  const other = 'other';

  /** Values of all immutable fields of the first VM. The second VM has other values or none. */
  const isFixed = ({ isMutable }: VMField) => isMutable === undefined;
  const FIXED: Spec = {
    ...sampleValues(isFixed, 0),
    configRef: { name: 'config' },
    image: 'any',
    imagePullSecrets: [{ name: 'secret' }],
    architecture: 'amd64',
    os: 'Linux',
    displayWidth: 800,
    displayHeight: 600,
    displayDPI: 96,
    network: { mode: 'NAT' },
    vnc: { enabled: true },
    readiness: { type: 'GuestAgent' },
    hardwareIdentity: 'Dynamic',
    ports: ['8822:22'],
    placement: { tag: 'fast' },
    serialNumber: 'ABCDEFGH',
    guestMetadata: { key: 'value' },
    userData: 'text',
    sshAuthorizedKeys: [PUBLIC_KEYS[0]],
    deployTimeoutSeconds: 60,
  };
  /** The second VM has the fields that exclude fields of the first. */
  const FIXED_TOO: Spec = { iso: 'disc', userDataSecretRef: { name: 'secret', key: 'key' } };
  const CHANGED: Spec = {
    ...sampleValues(isFixed, 1),
    configRef: { name: 'another' },
    image: 'another',
    iso: 'another',
    imagePullSecrets: [{ name: 'another' }],
    architecture: 'arm64',
    os: 'MacOS',
    displayWidth: 801,
    displayHeight: 601,
    displayDPI: 97,
    network: { mode: 'Bridge' },
    vnc: { enabled: false },
    readiness: { type: 'None' },
    hardwareIdentity: 'Consistent',
    ports: ['8823:22'],
    placement: { tag: 'slow' },
    serialNumber: 'ABCDEFGI',
    guestMetadata: { key: 'another' },
    userData: 'another',
    sshAuthorizedKeys: [PUBLIC_KEYS[1]],
    userDataSecretRef: { name: 'secret', key: 'another' },
    deployTimeoutSeconds: 61,
  };
  const MAY_CHANGE = {
    ...sampleValues(({ isMutable }) => isMutable === true, 1),
    cpu: 3,
    memory: '3Gi',
    diskSize: '11Gi',
    powerState: 'Stopped',
    restartPolicy: 'Always',
    restartRequestedAt: '2026-01-01T00:00:00Z',
    revertRequestedAt: '2026-01-01T00:00:00+02:00',
    aliveUntil: '2100-01-01T00:00:00-02:00',
    revertTo: 'snapshot',
    activeDeadlineSeconds: 60,
    ttlSecondsAfterFinished: 0,
  };

  beforeAll(async () => {
    for (const [vm, spec] of [
      [name, { ...FIXED, diskSize: '10Gi', aliveUntil: '2100-01-01T00:00:00Z' }],
      [other, { configRef: { name: 'config' }, ...FIXED_TOO }],
    ] as const) {
      await cluster.kubectl(['create', '-f', '-'], { input: object('VM', vm, spec) });
    }
  });

  async function patch(vm: string, spec: Spec) {
    const body = JSON.stringify({ spec });
    return await cluster.kubectl(['patch', 'vm', vm, '-n', namespace, '--type=merge', '-p', body], {
      allowFailure: true,
    });
  }

  async function expectKept(vm: string, spec: Spec, ...says: string[]): Promise<void> {
    const { code, stderr } = await patch(vm, spec);
    expect(code, `the API server accepted ${JSON.stringify(spec)}`).not.toBe(0);
    for (const part of says) {
      expect(stderr).toContain(part);
    }
  }

  it('has only fields that this test lists as mutable or immutable', () => {
    const known = { ...FIXED, ...FIXED_TOO, ...MAY_CHANGE };
    const fields = Object.keys((vmKind(240).spec as ZodObject).shape);
    expect(Object.keys(known).toSorted()).toEqual(fields.toSorted());
    expect(Object.keys(CHANGED).toSorted()).toEqual(Object.keys({ ...FIXED, ...FIXED_TOO }).toSorted());
  });

  it.each(Object.keys(CHANGED))(
    'keeps its %s: the field cannot be set, changed or removed',
    async (field) => {
      const has = field in FIXED ? name : other;
      const says = [`spec.${field}`, `${field} is immutable`];
      await expectKept(has, { [field]: CHANGED[field] }, ...says);
      await expectKept(has, { [field]: null }, ...says);
      // Both VMs have a configRef.
      if (field !== 'configRef') {
        await expectKept(has === name ? other : name, { [field]: CHANGED[field] }, ...says);
      }
    },
  );

  it.for<[string, Spec, ...string[]]>([
    ['a smaller disk', { diskSize: '9Gi' }, 'spec.diskSize', 'must not be reduced', '10Gi'],
    ['no disk size', { diskSize: null }, 'spec.diskSize', 'removed'],
    [
      'an earlier end of its life',
      { aliveUntil: '2099-12-31T23:59:59Z' },
      'spec.aliveUntil',
      'only be moved later or removed',
    ],
  ])('cannot get %s', async ([, spec, ...says]) => {
    await expectKept(name, spec, ...says);
  });

  it('can get changes that take effect later', async () => {
    const { code, stderr } = await patch(name, MAY_CHANGE);
    expect({ code, stderr }).toMatchObject({ code: 0 });
  });
});

describe('a status', () => {
  const name = 'reported';

  beforeAll(async () => {
    await cluster.kubectl(['create', '-f', '-'], { input: object('VM', name, { image: 'any' }) });
  });

  async function report(status: VMStatus) {
    const input = JSON.stringify({ ...JSON.parse(object('VM', name, { image: 'any' })), status });
    return await cluster.kubectl(['replace', '--subresource=status', '-f', '-'], {
      input,
      allowFailure: true,
    });
  }

  it('with far too long texts and lists is accepted after it is cut to its bounds', async () => {
    const long = '…'.repeat(40_000);
    const condition = { reason: 'StartFailed', message: long, lastTransitionTime: '2026-01-01T00:00:00Z' };
    const status: VMStatus = {
      phase: long,
      nodeName: long,
      hostAddress: long,
      addresses: Array.from({ length: 50 }, () => long),
      endpoints: Array.from({ length: 100 }, (_, n) => ({
        name: `${n}-tcp`,
        protocol: long,
        hostPort: n,
        guestPort: n,
      })),
      hardwareUUID: long,
      serialNumber: long,
      image: { name: long, reference: long, digest: long },
      accelerator: long,
      progress: long,
      resources: { cpu: 2, memory: long, diskSize: long },
      conditions: [{ type: 'Ready', status: 'False', ...condition }],
    };
    expect((await report(status)).code, 'as it was').not.toBe(0);
    const { code, stderr } = await report(boundStatus(vmStatusSchema, status));
    expect({ code, stderr }).toMatchObject({ code: 0 });
  });

  it('is shown by kubectl get, and in the wide form also with the reason of waiting', async () => {
    const condition = { observedGeneration: 1, lastTransitionTime: '2026-01-01T00:00:00Z' };
    await report({
      phase: 'Pending',
      progress: 'Pulling 42 %',
      nodeName: 'host-1',
      hostAddress: '192.0.2.1',
      image: { name: 'a/b:1', reference: 'docker.io/a/b:1' },
      accelerator: 'KVM',
      resources: { cpu: 2, memory: '4Gi' },
      conditions: [
        {
          type: 'Ready',
          status: 'False',
          reason: 'Unschedulable',
          message: 'waits for a host',
          ...condition,
        },
      ],
    });
    const get = ['get', 'vm', name, '-n', namespace];
    const { stdout: narrow } = await cluster.kubectl(get);
    expect(narrow.split('\n')[0]?.trim().split(/\s+/)).toEqual([
      'NAME',
      'PHASE',
      'PROGRESS',
      'READY',
      'REASON',
      'NODE',
      'ADDRESS',
      'AGE',
    ]);
    expect(narrow).toMatch(/reported +Pending +Pulling 42 % +False +Unschedulable +host-1 +192\.0\.2\.1/);
    const { stdout: wide } = await cluster.kubectl([...get, '-o', 'wide']);
    expect(wide).toMatch(/ a\/b:1 +KVM +2 +4Gi +waits for a host/);
  });
});

describe('kubectl', () => {
  it('explains a field with its bounds', async () => {
    const { stdout } = await cluster.kubectl(['explain', 'vm.spec.displayWidth']);
    expect(stdout).toContain('From 320 to 3840.');
  });

  it('knows every kind by its short name and category', async () => {
    const { stdout } = await cluster.kubectl(['api-resources', '--categories=berth', '--no-headers']);
    const lines = stdout
      .trim()
      .split('\n')
      .map((line) => line.split(/\s+/).slice(0, 2).join(' '));
    expect(lines.toSorted()).toEqual(
      [
        'emulators emu',
        'imagecacheentries ice',
        'images img',
        'isos iso',
        'runnersets runset',
        'servers srv',
        'vmconfigs vmc',
        'vmpools vmp',
        'vms vm',
        'vmsnapshots vmsnap',
      ].toSorted(),
    );
  });
});
