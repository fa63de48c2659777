import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { AgentConfig } from '../config.ts';
import type { SoftnetObstacle } from '../network/softnet.ts';
import { CHECKS, type CheckResult } from './checks.ts';
import { formatFindings, judgeHost, type NamedFinding } from './doctor.ts';
import type { Fact } from './fact.ts';
import type { ExaminedHost } from './facts.ts';
import { type MacFacts, parseLease, parsePower } from './mac.ts';
import type { LinuxFacts } from './linux.ts';

const CONFIG = {
  nodeName: 'mac1',
  dataDirectory: '/usr/local/var/berth',
  network: { driver: 'vmnet' },
  images: { minimumFree: 2e9 },
} as AgentConfig;
const UNKNOWN = { unknown: 'pmset ended with code 1' };
const SERVER = 'https://192.0.2.1:6443';

const known = <T>(value: T): Fact<T> => ({ known: value });

const MAC_FACTS: MacFacts = {
  version: known('26.1'),
  tart: known('2.32.1'),
  softnet: known<SoftnetObstacle | undefined>(undefined),
  power: known(
    new Map([
      ['sleep', 0],
      ['autorestart', 1],
    ]),
  ),
  fileVault: known('FileVault is Off.'),
  automaticLogin: known<string | undefined>('agent'),
  leaseSeconds: known<number | undefined>(600),
  isQuarantined: known(false),
  service: known<string | undefined>('running'),
};
const LINUX_FACTS: LinuxFacts = {
  kvm: known('usable' as const),
  qemu: known('QEMU emulator version 9.2.0'),
  controlGroups: known([
    { path: '/sys/fs/cgroup', version: 2 as const, controllers: ['cpu', 'memory', 'pids'] },
  ]),
  missingForNetwork: known<string[]>([]),
};

const COMMON = {
  program: '/usr/local/bin/berth-agent',
  config: known(CONFIG),
  logWriter: known(true as const),
  disk: known({ bytes: 300e9, share: 0.5 }),
  certificate: known({ validTo: new Date('2026-12-24T00:00:00Z'), isUsable: true }),
  cluster: known({ server: SERVER, status: 200, aheadMilliseconds: -700 }),
};
const MAC: ExaminedHost = {
  ...COMMON,
  platform: 'darwin',
  architecture: 'arm64',
  isRoot: false,
  user: 'agent',
  driver: 'tart',
  mac: MAC_FACTS,
  linux: undefined,
};
const LINUX: ExaminedHost = {
  ...COMMON,
  platform: 'linux',
  architecture: 'x64',
  isRoot: true,
  user: 'root',
  driver: 'qemu',
  mac: undefined,
  linux: LINUX_FACTS,
};

const config = (change: object): Partial<ExaminedHost> => ({ config: known({ ...CONFIG, ...change }) });
const mac = (change: Partial<MacFacts>): ExaminedHost => ({ ...MAC, mac: { ...MAC_FACTS, ...change } });
const linux = (change: Partial<LinuxFacts>): ExaminedHost => ({
  ...LINUX,
  linux: { ...LINUX_FACTS, ...change },
});

/** Returns the findings that are not ok. */
function problems(host: ExaminedHost) {
  return judgeHost(host).filter(({ result }) => result !== 'ok');
}

describe('a host on which all is well', () => {
  test('of Apple silicon has one open point: macOS does not tell the permission for the local network', () => {
    expect(problems(MAC).map(({ check, result }) => ({ check, result }))).toEqual([
      { check: 'local-network', result: 'unknown' },
    ]);
    expect(problems(mac({ version: known('14.7') }))).toEqual([]);
  });

  test('of Linux has nothing to do', () => {
    expect(problems(LINUX)).toEqual([]);
  });

  test('gets only the checks of its own system', () => {
    const names = (host: ExaminedHost): string[] => judgeHost(host).map(({ check }) => check);
    expect(names(LINUX)).not.toContain('sleep');
    expect(names(MAC)).not.toContain('kvm');
    const withQemu: ExaminedHost = { ...MAC, driver: 'qemu', architecture: 'x64' };
    expect(names(withQemu)).not.toContain('tart');
    expect(names(withQemu)).toContain('sleep');
    expect(problems(withQemu)).toEqual([]);
    const all = new Set([...names(MAC), ...names(LINUX)]);
    expect(CHECKS.map(({ name }) => name).filter((name) => !all.has(name))).toEqual([]);
  });
});

type Case = readonly [check: string, host: ExaminedHost, result: CheckResult, text: RegExp];

test.each<Case>([
  ['platform', mac({ version: known('12.7') }), 'fix', /macOS 12\.7 .*macOS 13 or later/],
  ['platform', { ...MAC, architecture: 'x64' }, 'fix', /x64.*machines\.driver to qemu/],
  ['platform', { ...LINUX, architecture: 'riscv64' }, 'fix', /riscv64.*Linux on amd64/],
  ['platform', { ...LINUX, platform: 'win32', linux: undefined }, 'fix', /win32/],
  ['configuration', { ...MAC, config: undefined }, 'unknown', /--config/],
  ['configuration', { ...MAC, config: { unknown: 'nodeName: bad' } }, 'fix', /nodeName: bad.*Correct/],
  ['user', { ...MAC, isRoot: true, user: 'root' }, 'fix', /root.*who is logged in/],
  ['user', { ...LINUX, isRoot: false, ...config({ network: { driver: 'nat' } }) }, 'fix', /needs root/],
  [
    'log-writer',
    { ...LINUX, logWriter: { unknown: 'Install perl in one of the folders /bin' } },
    'fix',
    /perl/,
  ],
  ['disk', { ...MAC, disk: known({ bytes: 1e9, share: 0.5 }) }, 'fix', /1\.0 GB .*no VMs now/],
  ['disk', { ...MAC, disk: known({ bytes: 20e9, share: 0.04 }) }, 'fix', /20\.0 GB .*4 %/],
  ['tart', mac({ tart: { unknown: 'tart cannot be executed' } }), 'fix', /cannot be executed.*brew install/],
  [
    'softnet',
    mac({ softnet: known({ finding: 'It gets no rights', advice: 'Run: chmod u+s' }) }),
    'fix',
    /no rights.*chmod u\+s/,
  ],
  [
    'data-directory',
    { ...MAC, ...config({ dataDirectory: `/${'d'.repeat(80)}` }) },
    'fix',
    /too long.*bytes shorter/,
  ],
  ['sleep', mac({ power: known(new Map([['sleep', 10]])) }), 'fix', /10 minutes.*pmset -a sleep 0/],
  ['sleep', mac({ power: known(new Map()) }), 'unknown', /no setting for sleep/],
  ['sleep', mac({ power: UNKNOWN }), 'unknown', /pmset ended with code 1/],
  ['power-failure', mac({ power: known(new Map([['autorestart', 0]])) }), 'fix', /stays off.*autorestart 1/],
  [
    'file-vault',
    mac({ fileVault: known('FileVault is On.') }),
    'fix',
    /FileVault is On.*Switch FileVault off/,
  ],
  ['automatic-login', mac({ automaticLogin: known(undefined) }), 'fix', /No user.*Choose agent/],
  ['automatic-login', mac({ automaticLogin: known('other') }), 'fix', /The user other.*Choose agent/],
  ['leases', mac({ leaseSeconds: known(undefined) }), 'fix', /86400 seconds.*DHCPLeaseTimeSecs -int 600/],
  ['leases', mac({ leaseSeconds: known(3600) }), 'fix', /3600 seconds/],
  [
    'quarantine',
    mac({ isQuarantined: known(true) }),
    'fix',
    /xattr -d com\.apple\.quarantine \/usr\/local\/bin\/berth-agent/,
  ],
  ['launchd', mac({ service: known(undefined) }), 'fix', /launchctl bootstrap gui/],
  ['launchd', mac({ service: known('not running') }), 'fix', /"not running".*log/],
  ['kvm', linux({ kvm: known('missing') }), 'fix', /no \/dev\/kvm.*firmware/],
  ['kvm', linux({ kvm: known('forbidden') }), 'fix', /group kvm/],
  ['qemu', linux({ qemu: { unknown: 'qemu-system-x86_64 cannot be executed' } }), 'fix', /Install QEMU/],
  ['network', linux({ missingForNetwork: known(['nft (package nftables)']) }), 'fix', /lacks nft/],
  ['control-groups', linux({ controlGroups: known([]) }), 'fix', /limit no memory, pids, cpu/],
  ['certificate', { ...MAC, certificate: known(undefined) }, 'unknown', /not joined.*Start the agent/],
  [
    'certificate',
    { ...MAC, certificate: known({ validTo: new Date(0), isUsable: false }) },
    'fix',
    /1970.*bootstrap kubeconfig/,
  ],
  [
    'cluster',
    { ...MAC, cluster: { unknown: 'connect ECONNREFUSED' } },
    'fix',
    /ECONNREFUSED.*Check the address/,
  ],
  ['cluster', { ...MAC, cluster: answer(401, 0) }, 'fix', /refuses the credentials/],
  ['cluster', { ...MAC, cluster: answer(502, 0) }, 'fix', /HTTP status 502/],
  ['clock', { ...MAC, cluster: answer(200, 61_000) }, 'fix', /61 s ahead of .*NTP/],
  ['clock', { ...MAC, cluster: answer(200, -61_000) }, 'fix', /61 s behind/],
  ['clock', { ...MAC, cluster: answer(200, undefined) }, 'unknown', /no time/],
])('the check %s finds a fault (%#)', (check, host, result, text) => {
  const found = judgeHost(host).find((one) => one.check === check);
  expect(found?.result).toBe(result);
  expect(`${found?.finding} ${found?.advice ?? ''}`).toMatch(text);
});

function answer(status: number, aheadMilliseconds: number | undefined): NonNullable<ExaminedHost['cluster']> {
  return known({ server: SERVER, status, aheadMilliseconds });
}

test('a host with a kubeconfig of its own needs no certificate', () => {
  const host = { ...MAC, ...config({ kubeconfig: '/etc/berth/kubeconfig' }), certificate: known(undefined) };
  expect(judgeHost(host).find(({ check }) => check === 'certificate')?.result).toBe('ok');
});

test('people read each finding with its advice, and a count', () => {
  const text = formatFindings([
    { check: 'disk', result: 'ok', finding: 'Half of the disk is free' },
    { check: 'sleep', result: 'fix', finding: 'The computer sleeps', advice: 'Wake it' },
    {
      check: 'configuration',
      result: 'fix',
      finding: 'a.yaml is not usable:\n  nodeName: bad',
      advice: 'Correct it',
    },
  ]);
  expect(text).toBe(
    [
      'ok   disk           Half of the disk is free',
      'fix  sleep          The computer sleeps',
      '                    Wake it',
      'fix  configuration  a.yaml is not usable:',
      '                      nodeName: bad',
      '                    Correct it',
      '',
      '1 ok, 2 to fix, 0 unknown',
      '',
    ].join('\n'),
  );
});

test('the answer of pmset is read with the reasons that keep the computer awake', () => {
  const text = [
    'System-wide power settings:',
    'Currently in use:',
    ' disksleep            10',
    ' sleep                10 (sleep prevented by sharingd, powerd)',
    ' Sleep On Power Button 1',
    ' autorestart          1',
  ].join('\n');
  const power = parsePower(text);
  expect([power.get('sleep'), power.get('disksleep'), power.get('autorestart')]).toEqual([10, 10, 1]);
});

test('the lifetime of leases is read from the settings of bootpd', () => {
  expect(parseLease('{\n    DHCPLeaseTimeSecs = 600;\n}')).toBe(600);
  expect(parseLease('{\n    other = 1;\n}')).toBeUndefined();
  expect(parseLease(undefined)).toBeUndefined();
});

test.runIf(process.platform === 'linux')('the program checks this computer', () => {
  const main = join(import.meta.dirname, '..', 'main.ts');
  const { status, stdout } = spawnSync(process.execPath, [main, 'doctor', '--output', 'json'], {
    encoding: 'utf8',
  });
  const findings = JSON.parse(stdout) as NamedFinding[];
  const checks = [
    'platform',
    'configuration',
    'user',
    'log-writer',
    'kvm',
    'qemu',
    'network',
    'control-groups',
  ];
  expect(findings.map(({ check }) => check)).toEqual(checks);
  expect(status).toBe(findings.some(({ result }) => result === 'fix') ? 1 : 0);
});
