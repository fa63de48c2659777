import { mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { ConfigError } from '../base/config.ts';
import { folderMistakes, loadConfig } from './config.ts';
import { rememberOwner } from './owner.ts';
import { makeFolder } from '../test/support/folder.ts';

let directory: string;

beforeEach(() => {
  directory = makeFolder();
});

afterEach(() => {
  vi.unstubAllEnvs();
});

const LEAST = 'nodeName: mac1\ndataDirectory: data\nbootstrapKubeconfig: boot\naddress: 192.0.2.1\n';
const ONE_NAMESPACE = `${LEAST.replace('bootstrapKubeconfig', 'kubeconfig')}namespace: platform-ci\n`;
const ROOT = true;

function write(text: string): string {
  const file = join(directory, 'agent.yaml');
  writeFileSync(file, text);
  return file;
}

function mistakes(text: string, isRoot = !ROOT): readonly string[] {
  try {
    loadConfig(write(text), {}, isRoot);
  } catch (error) {
    if (error instanceof ConfigError) {
      return error.mistakes;
    }
    throw error;
  }
  return [];
}

test('the least that must be said, and what follows from it', () => {
  expect(loadConfig(write(LEAST), {}, !ROOT)).toMatchObject({
    nodeName: 'mac1',
    dataDirectory: join(directory, 'data'),
    bootstrapKubeconfig: join(directory, 'boot'),
    kubelet: { port: 0 },
    network: { driver: 'user', checkIntervalSeconds: 2 },
    images: { sharedRoots: [], allowLoopbackHttp: false, registries: [], minimumFree: 2 * 1024 ** 3 },
    reserved: { cpu: 0, memory: 512 * 1024 * 1024 },
    cpuOvercommit: 1,
    fenceAfterSeconds: 40,
  });
});

test('paths of images count from the file, quantities are bytes', () => {
  const text = `${LEAST}images:
  sharedRoots: [shared]
  storageFolder: storage
  budget: 100Gi
  minimumFree: 5Gi
  registries:
    - { host: "registry.example:5000", caFile: ca.crt, credentialsFile: /etc/berth/storage.json }
`;
  expect(loadConfig(write(text), {}, !ROOT).images).toEqual({
    sharedRoots: [join(directory, 'shared')],
    storageFolder: join(directory, 'storage'),
    budget: 100 * 1024 ** 3,
    minimumFree: 5 * 1024 ** 3,
    allowLoopbackHttp: false,
    registries: [
      {
        host: 'registry.example:5000',
        caFile: join(directory, 'ca.crt'),
        plainHttp: false,
        credentialsFile: '/etc/berth/storage.json',
      },
    ],
  });
  expect(mistakes(`${LEAST}images: { registries: [{ host: "https://registry.example" }] }\n`)[0]).toMatch(
    /^images\.registries\.0\.host: Use a host name/,
  );
});

test('every mistake is named with its path', () => {
  const text = `${LEAST}certificates: { clientSeconds: 599 }\nreserved: { memory: lots }\nnetwork: { driver: token-ring }\ntypo: 1\n`;
  const found = mistakes(text);
  expect(found).toHaveLength(4);
  expect(found.join('\n')).toMatch(/certificates\.clientSeconds: .*600/);
  expect(found.join('\n')).toMatch(/reserved\.memory: "lots" is not a quantity/);
  expect(found.join('\n')).toMatch(/network\.driver: /);
  expect(found.join('\n')).toMatch(/typo/);
});

test('a range from which the agent could choose no port is refused; one port that is left suffices', () => {
  const denied = (ports: string): string =>
    `${LEAST}kubelet: { port: 8999 }\nports: { ssh: 8998-8999, ${ports} }\n`;
  expect(mistakes(denied('denied: ["8000-8998", "20000-29999"]'))).toEqual([
    'ports.automatic: All ports in 20000-21999 are among ports.denied (8000-8998, 20000-29999, 8999). Choose another range, or deny fewer ports',
    'ports.ssh: All ports in 8998-8999 are among ports.denied (8000-8998, 20000-29999, 8999). Choose another range, or deny fewer ports',
  ]);
  expect(mistakes(denied('denied: ["8000-8997", "20000-21998"]'))).toEqual([]);
});

describe("the network's driver", () => {
  test.each(['', 'network: {}\n', 'network: { hostAddress: 192.0.2.1 }\n'])(
    'root must name it: %j',
    (network) => {
      const found = mistakes(`${LEAST}${network}`, ROOT);
      expect(found).toEqual([expect.stringMatching(/^network\.driver: .*root.*nat.*user/)]);
      expect(mistakes(`${LEAST}${network}`)).toEqual([]);
    },
  );

  test('the configuration says what guests may not reach: what tells a host of itself, and the named networks of the cluster', () => {
    const text = `${LEAST}network: { driver: nat }\nclusterCIDRs: [10.244.0.0/16, "fd00:10::/48"]\n`;
    const { network, clusterCIDRs } = loadConfig(write(text), {}, ROOT);
    expect(network).toMatchObject({
      guestsMayNotReach: expect.arrayContaining(['169.254.0.0/16', '168.63.129.16/32', 'fd00:ec2::254/128']),
      connectionsPerGuest: 2048,
    });
    expect(clusterCIDRs).toEqual(['10.244.0.0/16', 'fd00:10::/48']);
    expect(mistakes(`${LEAST}clusterCIDRs: [pods]\n`)[0]).toMatch(/^clusterCIDRs\.0: /);
  });

  test.each(['nat', 'user'])(
    'networks of the cluster below %s are refused: they have another place',
    (driver) => {
      const found = mistakes(`${LEAST}network: { driver: ${driver}, clusterCIDRs: [10.244.0.0/16] }\n`, ROOT);
      expect(found).toEqual([
        expect.stringMatching(
          /^network\.clusterCIDRs: Move .* clusterCIDRs at the top level.*images\.registries/,
        ),
      ]);
    },
  );
});

describe("the machines' driver", () => {
  test('tart brings its network, also for root, and a network that does not fit is refused', () => {
    const text = `${LEAST}machines: { driver: tart, tart: bin/tart }\n`;
    expect(loadConfig(write(text), {}, ROOT)).toMatchObject({
      network: { driver: 'vmnet' },
      machines: { driver: 'tart', tart: join(directory, 'bin/tart') },
    });
    expect(mistakes(`${text}network: { driver: user }\n`)).toEqual([
      'network.driver: machines.driver is tart, which needs vmnet or softnet, not user',
    ]);
    expect(mistakes(`${LEAST}network: { driver: vmnet }\n`)).toEqual([
      'network.driver: vmnet needs machines.driver tart. Use nat or user',
    ]);
    expect(mistakes(`${text}architecture: amd64\n`)[0]).toMatch(/^architecture: .* arm64 guests only/);
    expect(
      mistakes(`${LEAST}network: { driver: user }\nmachines: { driver: qemu, screens: true }\n`),
    ).toEqual(['machines.screens: true is for machines.driver tart. Other drivers serve screens always']);
    expect(mistakes(`${text}network: { guestsMayNotReach: [192.0.2.0/24] }\n`)[0]).toMatch(
      /^network\.guestsMayNotReach: .*blocks nothing/,
    );
  });

  test('tart filters with softnet: networks that guests may reach are not among those that they may not', () => {
    const text = `${LEAST}machines: { driver: tart }\nclusterCIDRs: [10.244.0.0/16, fd00::/48]\n`;
    const softnet = (settings: string) => `${text}network: { driver: softnet, ${settings} }\n`;
    const mayReach = (network: string) => softnet(`guestsMayReach: ["${network}"]`);
    expect(loadConfig(write(mayReach('10.0.0.0/8')), {}, ROOT).network).toMatchObject({
      driver: 'softnet',
      guestsMayReach: ['10.0.0.0/8'],
    });
    // The part that guests may not reach stays blocked, because its prefix is longer.
    expect(loadConfig(write(mayReach('10.244.0.0/12')), {}, ROOT).network.driver).toBe('softnet');
    for (const network of ['10.244.0.0/16', '10.244.7.0/24', '168.63.129.16/32']) {
      expect(mistakes(mayReach(network))).toEqual([
        expect.stringMatching(/^network\.guestsMayReach: .* guests may not reach/),
      ]);
    }
    expect(mistakes(mayReach('0.0.0.0/0'))[0]).toContain('guests could reach each other');
    expect(mistakes(mayReach('fd00::/48'))[0]).toMatch(/^network\.guestsMayReach\.0: /);
    expect(mistakes(`${LEAST}network: { driver: softnet }\n`)).toEqual([
      'network.driver: softnet needs machines.driver tart. Use nat or user',
    ]);
  });

  test('is tart on Apple silicon, and else qemu', () => {
    expect(loadConfig(write(LEAST), {}, !ROOT).network.driver).toBe('user');
    vi.spyOn(process, 'platform', 'get').mockReturnValue('darwin');
    vi.spyOn(process, 'arch', 'get').mockReturnValue('arm64');
    onTestFinished(() => void vi.restoreAllMocks());
    expect(loadConfig(write(LEAST), {}, ROOT).network.driver).toBe('vmnet');
    expect(loadConfig(write(`${LEAST}machines: { driver: qemu }\n`), {}, !ROOT).network.driver).toBe('user');
  });
});

describe('who the agent is', () => {
  test('must be said in exactly one way', () => {
    const wanted = ['bootstrapKubeconfig: Set exactly one of bootstrapKubeconfig and kubeconfig'];
    expect(mistakes(`${LEAST}kubeconfig: own\n`)).toEqual(wanted);
    expect(mistakes(LEAST.replace('bootstrapKubeconfig: boot\n', ''))).toEqual(wanted);
  });

  test.each(['Mac1', 'mac.1', '-mac', ''])('name %j is refused', (name) => {
    expect(mistakes(LEAST.replace('mac1', JSON.stringify(name)))[0]).toMatch(/^nodeName: /);
  });
});

test('a file that is not there, and one that is not YAML, are said in words', () => {
  expect(() => loadConfig(join(directory, 'none.yaml'))).toThrow(/ENOENT/);
  expect(mistakes('a: [')).toEqual([expect.stringMatching(/^Flow sequence .* at line 1, column 5/)]);
});

test('name and address from the environment where the file leaves them out, as a DaemonSet needs', () => {
  const file = write('dataDirectory: data\nbootstrapKubeconfig: boot\n');
  const environment = { BERTH_NODE_NAME: 'node-1.example.org-vms', BERTH_ADDRESS: '192.0.2.7' };
  expect(loadConfig(file, environment, !ROOT)).toMatchObject({
    nodeName: 'node-1-example-org-vms',
    address: '192.0.2.7',
  });
  expect(loadConfig(write(LEAST), environment, !ROOT)).toMatchObject({
    nodeName: 'mac1',
    address: '192.0.2.1',
  });
});

describe('folders of shared files hold nothing of the agent', () => {
  const WHY = 'overlap. Because of this, users who make Images could read files of the agent';
  const images = (roots: string, rest = ''): readonly string[] =>
    mistakes(`${LEAST}images: { sharedRoots: [${roots}]${rest} }\n`);

  test.each(['data', '.', 'data/images', 'link', 'data/later/../images'])(
    '%s beside dataDirectory data',
    (root) => {
      mkdirSync(join(directory, 'data'));
      symlinkSync(join(directory, 'data'), join(directory, 'link'));
      const shared = join(directory, root);
      const own = join(directory, 'data');
      expect(images(root)).toEqual([`images.sharedRoots: ${shared} and dataDirectory (${own}) ${WHY}`]);
    },
  );

  test('nor of the storage of images, also where that is a link', () => {
    mkdirSync(join(directory, 'shared'));
    symlinkSync(join(directory, 'shared'), join(directory, 'storage'));
    const [shared, storage] = ['shared', 'storage'].map((name) => join(directory, name));
    expect(images('shared', ', storageFolder: storage')).toEqual([
      `images.sharedRoots: ${shared} and images.storageFolder (${storage}) ${WHY}`,
    ]);
  });

  test('folders beside one another are fine, also when one has the name of the other at its beginning', () => {
    expect(images('data-shared, ..data', ', storageFolder: storage')).toEqual([]);
  });
});

describe('a faulty file server of shared files does not keep the agent from starting', () => {
  test('if it refuses all access', () => {
    writeFileSync(join(directory, 'file'), '');
    expect(mistakes(`${LEAST}images: { sharedRoots: [file/shared], storageFolder: file/storage }\n`)).toEqual(
      [],
    );
  });

  test('if it does not answer', () => {
    const data = join(directory, 'data');
    const shared = join(directory, 'shared');
    mkdirSync(data);
    symlinkSync(data, shared);
    const folders = { dataDirectory: data, images: { sharedRoots: [shared] } };
    expect(folderMistakes(folders)).toHaveLength(1);
    // Nothing can follow the link now.
    writeFileSync(join(directory, 'stat'), '#!/bin/sh\nexec sleep 600\n', { mode: 0o755 });
    vi.stubEnv('PATH', `${directory}:${process.env['PATH']}`);
    expect(folderMistakes(folders, 100)).toEqual([]);
  });
});

describe('the SDK for emulators', () => {
  test('is a folder of the host, and relative paths begin in the folder of the file', () => {
    const { emulator } = loadConfig(
      write(`${LEAST}emulator: { sdk: sdk, program: /opt/emulator }\n`),
      {},
      !ROOT,
    );
    expect(emulator).toEqual({ sdk: join(directory, 'sdk'), program: '/opt/emulator' });
    expect(loadConfig(write(LEAST), {}, !ROOT).emulator).toBeUndefined();
    expect(mistakes(`${LEAST}emulator: {}\n`)).toEqual([expect.stringMatching(/^emulator\.sdk: /)]);
  });

  test.each(['data', '.', 'data/sdk'])('%s overlaps with dataDirectory data', (sdk) => {
    const folders = `${join(directory, sdk)} and dataDirectory (${join(directory, 'data')})`;
    expect(mistakes(`${LEAST}emulator: { sdk: ${sdk} }\n`)).toEqual([
      `emulator.sdk: ${folders} overlap. Because of this, emulators could read files of the agent`,
    ]);
  });
});

describe('a host with machines, which the agent would remove with their disks if it did not see their Pods,', () => {
  const remedy =
    'the agent would remove them with their disks. Keep the name, delete the VMs of these machines first, or set another dataDirectory';

  test('keeps its name', () => {
    const data = join(directory, 'data');
    mkdirSync(data);
    rememberOwner({ nodeName: 'mac9', dataDirectory: data });
    expect(mistakes(LEAST)).toEqual([]);
    mkdirSync(join(data, 'pods'));
    expect(mistakes(LEAST)).toEqual([]);
    writeFileSync(join(data, 'pods', 'uid.json'), '{');
    expect(mistakes(LEAST)).toEqual([`nodeName: ${data} has machines of Node mac9. As Node mac1, ${remedy}`]);
    expect(mistakes(LEAST.replace('mac1', 'mac9'))).toEqual([]);
  });

  test('keeps its namespace, and serves all namespaces as before if it has machines of several', () => {
    const data = join(directory, 'data');
    mkdirSync(join(data, 'pods'), { recursive: true });
    for (const [name, key] of Object.entries({
      a: 'platform-ci/vm',
      b: 'platform-ci/other',
      c: 'platform-x/vm',
    })) {
      writeFileSync(join(data, 'pods', `${name}.json`), JSON.stringify({ key }));
    }
    expect(mistakes(ONE_NAMESPACE)).toEqual([
      `namespace: ${data} has machines of platform-x. For platform-ci alone, ${remedy}`,
    ]);
    rmSync(join(data, 'pods', 'c.json'));
    expect(mistakes(ONE_NAMESPACE)).toEqual([]);
    expect(mistakes(LEAST)).toEqual([]);
  });
});

test('only a host with a kubeconfig can serve one namespace alone', () => {
  expect(mistakes(`${LEAST}namespace: platform-ci\n`)).toEqual([
    expect.stringMatching(/^namespace: Only a host with a kubeconfig can serve one namespace alone/),
  ]);
  expect(mistakes(ONE_NAMESPACE.replace('platform-ci', 'Platform'))).toEqual([
    expect.stringMatching(/^namespace: /),
  ]);
  expect(mistakes(`${ONE_NAMESPACE}certificates: { servingSigner: "it's" }\n`)).toEqual([
    expect.stringMatching(/^certificates\.servingSigner: Use the name of a signer/),
  ]);
});
