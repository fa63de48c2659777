/** The archive of the agent for Apple hosts. Nothing runs it here: its executable is read, and its scripts run with stand-ins for programs of macOS. */
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { readLibraries, readLoadCommands, readSegments, readSignature } from '../../hack/cli/macho.ts';
import { makeMacArchive } from '../../hack/mac.ts';

const SCRIPTS = join(import.meta.dirname, '../../hack/mac');
const MAKE_MILLISECONDS = 300_000;
/** Flags of a signature that has no identity and is from a linker. */
const AD_HOC_OF_LINKER = 0x20002;
const FUSE = /NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2:1/;

let folder: string;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'berth-mac-test-'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe('the archive', () => {
  let content: string;

  beforeAll(async () => {
    const archive = await makeMacArchive(folder);
    execFileSync('tar', ['-xzf', archive, '-C', folder]);
    content = archive.replace(/\.tar\.gz$/, '');
  }, MAKE_MILLISECONDS);

  test('has the agent, its licences, the file for launchd and the scripts', () => {
    const modes = Object.fromEntries(
      execFileSync('ls', [content], { encoding: 'utf8' })
        .trim()
        .split('\n')
        .map((name) => [name, (statSync(join(content, name)).mode & 0o777).toString(8)]),
    );
    expect(modes).toEqual({
      'LICENSES.txt': '644',
      'berth-agent': '755',
      'dev.berth.agent.plist': '644',
      'install.sh': '755',
      'remove.sh': '755',
    });
  });

  test('has an executable of Apple silicon with the bundle, a whole signature, and libraries of macOS only', () => {
    const file = readFileSync(join(content, 'berth-agent'));
    const commands = readLoadCommands(file).map(({ name }) => name);
    const segments = readSegments(file).map(({ name }) => name);
    const signature = readSignature(file);
    const libraries = readLibraries(file);
    console.log(
      JSON.stringify({ bytes: file.length, commands, segments, signature, libraries }, undefined, 1),
    );
    expect(file.readUInt32LE(4)).toBe(CPU_ARM64);
    expect(commands).toEqual(expect.arrayContaining(['LC_MAIN', 'LC_BUILD_VERSION', 'LC_CODE_SIGNATURE']));
    expect(segments).toContain('NODE_SEA');
    expect(segments.at(-1)).toBe('__LINKEDIT');
    expect(file.toString('latin1')).toMatch(FUSE);
    expect(signature).toMatchObject({ identifier: 'berth-agent', flags: AD_HOC_OF_LINKER, damaged: [] });
    expect(libraries.filter((path) => !/^\/(?:usr\/lib|System\/Library)\//.test(path))).toEqual([]);
  });

  test('a changed executable does not match its signature', () => {
    const file = readFileSync(join(content, 'berth-agent'));
    const at = file.length >> 1;
    file.writeUInt8(file.readUInt8(at) ^ 1, at);
    expect(readSignature(file).damaged).toHaveLength(1);
  });
});

/** Settings and leases of the DHCP server, below the root. */
const LEASES = 'Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist';
const GIVEN = 'var/db/dhcpd_leases';

/** Processor type of 64-bit ARM in executables. */
const CPU_ARM64 = 0x0100000c;

/** A Mac without the agent: a folder in place of its root, and stand-ins for programs in PATH. */
class Mac {
  readonly root = mkdtempSync(join(folder, 'root-'));
  readonly #bin = join(this.root, 'bin');
  readonly #calls = join(this.root, 'calls');
  readonly #given = join(this.root, 'given');
  readonly #written = join(this.root, 'written');

  constructor() {
    mkdirSync(this.#bin);
    this.#program(
      'id',
      '[ $# -eq 1 ] && { echo 0; exit; }; [ "$2" = agent ] && echo 501 || { [ "$2" = root ] && echo 0; }',
    );
    this.#program('chown', `echo "$*" >>'${this.#given}'`);
    this.#program('sleep', 'true');
    // A service is loaded as long as its file exists.
    this.#program(
      'launchctl',
      `echo "$*" >>'${this.#calls}'; loaded='${this.root}/loaded'
case $1 in print) [ -e "$loaded" ] ;; bootstrap) touch "$loaded" ;; bootout) rm "$loaded" ;; esac`,
    );
    this.#program('pgrep', `[ -e '${this.root}/guest' ]`);
    this.#program(
      'ifconfig',
      `echo "lo0 en0 bridge0$([ ! -e '${this.root}/other-guest' ] || echo ' vmenet0 bridge100')"`,
    );
    // A file that cannot be read stands for any error but missing settings.
    this.#program(
      'defaults',
      `case $1 in
read) [ ! -d "$2" ] && cat "$2" 2>/dev/null && exit; [ -e "$2" ] && echo 'Could not read' >&2 || echo "The domain/default pair of ($2, $3) does not exist" >&2; exit 1 ;;
write) mkdir -p "\${2%/*}"; echo "{ $5 = $7; }" >"$2"; shift 2; echo "$*" >>'${this.#written}' ;;
esac`,
    );
    writeFileSync(this.#calls, '');
    mkdirSync(join(this.root, 'archive'));
    for (const name of ['install.sh', 'remove.sh', 'dev.berth.agent.plist']) {
      writeFileSync(join(this.root, 'archive', name), readFileSync(join(SCRIPTS, name)));
    }
    this.release('first');
  }

  /** Puts another agent into the unpacked archive. */
  release(text: string): void {
    writeFileSync(join(this.root, 'archive', 'berth-agent'), text);
  }

  run(script: 'install.sh' | 'remove.sh', ...parameters: string[]): string {
    return execFileSync('sh', [join(this.root, 'archive', script), ...parameters], {
      encoding: 'utf8',
      stdio: 'pipe',
      env: { PATH: `${this.#bin}:/usr/bin:/bin`, BERTH_ROOT: this.root },
    });
  }

  /** Returns the changes of launchd since the last call. */
  changes(): string[] {
    const lines = readFileSync(this.#calls, 'utf8').split('\n');
    writeFileSync(this.#calls, '');
    return lines.filter((line) => line !== '' && !line.startsWith('print'));
  }

  /** Returns the arguments of all calls of `chown`. */
  given(): string {
    return readFileSync(this.#given, 'utf8');
  }

  /** Returns the arguments of all calls of `defaults` that write, without the file. */
  written(): string {
    return existsSync(this.#written) ? readFileSync(this.#written, 'utf8') : '';
  }

  write(path: string, text: string): void {
    mkdirSync(join(this.root, path, '..'), { recursive: true });
    writeFileSync(join(this.root, path), text);
  }

  #program(name: string, script: string): void {
    writeFileSync(join(this.#bin, name), `#!/bin/sh\n# Stand-in for a program of macOS.\n${script}\n`);
    chmodSync(join(this.#bin, name), 0o755);
  }
}

describe('the scripts', () => {
  const PROGRAM = 'usr/local/bin/berth-agent';
  const PLIST = 'Library/LaunchAgents/dev.berth.agent.plist';

  test('give the settings to the user, and no file that has another name elsewhere', () => {
    const mac = new Mac();
    const settings = 'usr/local/etc/berth';
    mac.write(`${settings}/agent.yaml`, 'nodeName: mac1\n');
    mac.write('etc/of-the-system', '');
    linkSync(join(mac.root, 'etc/of-the-system'), join(mac.root, settings, 'another-name'));
    symlinkSync(join(mac.root, 'etc/of-the-system'), join(mac.root, settings, 'link'));
    mac.run('install.sh', 'agent');
    const folder = join(mac.root, settings);
    expect(mac.given().split('\n').slice(-4, -1)).toEqual([
      `root ${folder}`,
      `-h agent ${folder}/agent.yaml`,
      `agent ${folder}`,
    ]);
  });

  test('install the agent, start it when it has its settings, upgrade and remove it', () => {
    const mac = new Mac();
    expect(mac.run('install.sh', 'agent')).toMatch(/Write .*agent\.yaml/);
    expect(mac.changes()).toEqual([]);
    mac.write('usr/local/etc/berth/agent.yaml', 'nodeName: mac1\n');
    expect(mac.run('install.sh', 'agent')).toMatch(/has been started/);
    expect(mac.changes()).toEqual([`bootstrap gui/501 ${join(mac.root, PLIST)}`]);
    mac.release('second');
    expect(mac.run('install.sh', 'agent')).toMatch(/restarted\. Its machines run on/);
    expect(mac.changes()).toEqual(['kickstart -k gui/501/dev.berth.agent']);
    expect(readFileSync(join(mac.root, PROGRAM), 'utf8')).toBe('second');
    writeFileSync(join(mac.root, PLIST), 'of an earlier version');
    mac.run('install.sh', 'agent');
    expect(mac.changes()).toEqual([
      'bootout gui/501/dev.berth.agent',
      `bootstrap gui/501 ${join(mac.root, PLIST)}`,
    ]);
    mac.run('remove.sh', 'agent');
    expect(mac.changes()).toEqual(['bootout gui/501/dev.berth.agent']);
    const left = [PROGRAM, PLIST, 'usr/local/etc/berth', 'usr/local/var/berth'];
    expect(left.filter((path) => existsSync(join(mac.root, path)))).toEqual([]);
  });

  test('shorten the leases of guests, and forget earlier ones', () => {
    const mac = new Mac();
    mac.write(GIVEN, '{}');
    expect(mac.run('install.sh', 'agent')).toMatch(/guests keep their addresses for 10 minutes/);
    expect(mac.written()).toBe('bootpd -dict DHCPLeaseTimeSecs -int 600\n');
    expect(existsSync(join(mac.root, GIVEN))).toBe(false);
    expect(mac.run('install.sh', 'agent')).not.toMatch(/addresses/);
    expect(mac.written()).toBe('bootpd -dict DHCPLeaseTimeSecs -int 600\n');
  });

  test.each(['guest', 'other-guest'])('keep earlier leases while a guest runs: %s', (kind) => {
    const mac = new Mac();
    mac.write(GIVEN, '{}');
    mac.write(kind, '');
    expect(mac.run('install.sh', 'agent')).toMatch(/Earlier leases stay .*dhcpd_leases/);
    expect(existsSync(join(mac.root, GIVEN))).toBe(true);
  });

  test.each([
    [
      '{ detect_other_dhcp_server = 1; }',
      /Add DHCPLeaseTimeSecs 600 to bootpd: sudo defaults write .*-dict-add/,
    ],
    ['{\n    DHCPLeaseTimeSecs = 86400;\n}', /for 86400 seconds.*sudo defaults write .*-dict-add/],
    ['{\n    "DHCPLeaseTimeSecs" = "300";\n}', /for 300 seconds/],
  ])('leave the settings %j of the DHCP server alone, and say how to change them', (text, message) => {
    const mac = new Mac();
    mac.write(LEASES, text);
    expect(mac.run('install.sh', 'agent')).toMatch(message);
    expect([mac.written(), readFileSync(join(mac.root, LEASES), 'utf8')]).toEqual(['', text]);
  });

  test('do not replace settings of the DHCP server that cannot be read', () => {
    const mac = new Mac();
    mac.write(join(LEASES, 'unreadable'), '');
    expect(mac.run('install.sh', 'agent')).toMatch(/cannot be read.*Could not read/);
    expect(mac.written()).toBe('');
  });

  test('the settings can be read by the user of the agent alone', () => {
    const mac = new Mac();
    mac.run('install.sh', 'agent');
    expect(statSync(join(mac.root, 'usr/local/etc/berth')).mode & 0o777).toBe(0o700);
  });

  test.each([
    [[], /name the user/],
    [['nobody-here'], /there is no user nobody-here/],
    [['root'], /do not start as root/],
  ])('do nothing for the user %j', (parameters, message) => {
    const mac = new Mac();
    expect(() => mac.run('install.sh', ...parameters)).toThrow(message);
    expect(existsSync(join(mac.root, PROGRAM))).toBe(false);
  });

  test('do not remove a host that has machines', () => {
    const mac = new Mac();
    mac.run('install.sh', 'agent');
    mac.write('usr/local/var/berth/machines/uid/tart.json', '{}');
    expect(() => mac.run('remove.sh', 'agent')).toThrow(/this host has machines/);
    expect(existsSync(join(mac.root, PROGRAM))).toBe(true);
  });

  test.each([
    ['/opt/berth', 'opt/berth'],
    [' "/opt/my berth/" # short', 'opt/my berth'],
    ["'/opt/berth'", 'opt/berth'],
    ['data', 'usr/local/etc/berth/data'],
  ])('do not remove a host that has machines in the dataDirectory %s, and leave it', (text, path) => {
    const mac = new Mac();
    mac.run('install.sh', 'agent');
    mac.write(
      'usr/local/etc/berth/agent.yaml',
      `# dataDirectory: /none\nnodeName: a\ndataDirectory: ${text}\n`,
    );
    mac.write(join(path, 'machines/uid/tart.json'), '{}');
    expect(() => mac.run('remove.sh', 'agent')).toThrow(`this host has machines in ${join(mac.root, path)}.`);
    expect(existsSync(join(mac.root, PROGRAM))).toBe(true);
    rmSync(join(mac.root, path, 'machines/uid'), { recursive: true });
    const isLeft = path.startsWith('opt');
    expect(mac.run('remove.sh', 'agent').includes(`${join(mac.root, path)} is left`)).toBe(isLeft);
    expect(existsSync(join(mac.root, path))).toBe(isLeft);
    expect(existsSync(join(mac.root, PROGRAM))).toBe(false);
  });

  test.each([
    'dataDirectory: &folder /opt/berth',
    'dataDirectory:\n  /opt/berth',
    'dataDirectory: /opt\n  berth',
    'dataDirectory: "/opt/\\x62erth"',
    '{nodeName: a, dataDirectory: /opt/berth}',
  ])('do not remove a host if they cannot read %j', (text) => {
    const mac = new Mac();
    mac.run('install.sh', 'agent');
    mac.write('usr/local/etc/berth/agent.yaml', `${text}\n`);
    expect(() => mac.run('remove.sh', 'agent')).toThrow(/cannot read dataDirectory in .*agent\.yaml/);
    expect(existsSync(join(mac.root, PROGRAM))).toBe(true);
  });
});
