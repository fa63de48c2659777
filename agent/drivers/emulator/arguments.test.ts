import { describe, expect, it } from 'vitest';
import { avdFiles, commandLine, environment } from './arguments.ts';
import { groupsFor } from './sdk.ts';

const PHONE = {
  platform: 'android-36',
  device: 'pixel_9',
  imageType: 'google_apis',
  architecture: 'amd64' as const,
};

describe('an AVD', () => {
  it('names its system image, its screen and its disk', () => {
    const { ini, config } = avdFiles(PHONE, '/run/machine/avd');
    expect(ini.split('\n')).toEqual(
      expect.arrayContaining(['path=/run/machine/avd/berth.avd', 'target=android-36']),
    );
    const lines = config.split('\n');
    expect(lines).toEqual(
      expect.arrayContaining([
        'abi.type=x86_64',
        'disk.dataPartition.size=6G',
        'hw.cpu.arch=x86_64',
        'hw.device.name=pixel_9',
        'hw.lcd.density=420',
        'hw.lcd.height=2424',
        'hw.lcd.width=1080',
        'image.sysdir.1=system-images/android-36/google_apis/x86_64/',
        'tag.id=google_apis',
      ]),
    );
    const arm = avdFiles({ ...PHONE, architecture: 'arm64', device: 'pixel_9_pro' }, '/avd').config;
    expect(arm).toContain('image.sysdir.1=system-images/android-36/google_apis/arm64-v8a/\n');
    expect(arm).toContain('hw.cpu.arch=arm64\n');
    expect(arm).toContain('hw.lcd.height=2856\n');
  });

  it.each(['pixel_1000', 'constructor', 'Pixel_9'])('of the unknown device %s is refused', (device) => {
    const refused = () => avdFiles({ ...PHONE, device }, '/avd');
    expect(refused).toThrow(`The device ${device} is unknown. The known devices are medium_phone, `);
    expect(refused).toThrow(expect.objectContaining({ reason: 'CreateFailed' }));
  });
});

describe('the command line of an emulator', () => {
  const command = {
    program: '/sdk/emulator/emulator',
    uid: 'the-uid',
    cpu: 2,
    memoryBytes: 4 * 1024 ** 3 + 1,
    isAccelerated: true,
    dnsServer: '198.51.100.1',
  };

  it('names ports, sizes and the DNS server, and opens nothing else', () => {
    const line = commandLine(command).join(' ');
    expect(line).toContain('-avd berth -id the-uid ');
    expect(line).toContain('-cores 2 -memory 4096 -accel on -port 5554 ');
    expect(line).toContain('-dns-server 198.51.100.1');
    expect(line).toContain('-no-window -no-audio -no-boot-anim -no-snapshot');
    const options = line.split(' ').filter((word) => /^-[a-z]/.test(word));
    expect(options.join(' ')).toBe(
      '-avd -id -no-window -no-audio -no-boot-anim -no-snapshot -gpu -no-metrics -feature -feature ' +
        '-cores -memory -accel -port -skip-adb-auth -dns-server -show-kernel',
    );
    expect(commandLine({ ...command, isAccelerated: false }).join(' ')).toContain('-accel auto');
  });

  it('comes with an environment in which all writable folders are the own ones of the machine', () => {
    const variables = environment('/run/machine', '/sdk');
    expect(variables).toMatchObject({ ANDROID_HOME: '/sdk', ANDROID_SDK_ROOT: '/sdk' });
    expect(variables['ANDROID_ADB_SERVER_PORT']).not.toBe('5037');
    const readOnly = ['PATH', 'ANDROID_HOME', 'ANDROID_SDK_ROOT'];
    const folders = Object.entries(variables).filter(
      ([name, value]) => value.includes('/') && !readOnly.includes(name),
    );
    const writable = ['HOME', 'TMPDIR', 'XDG_RUNTIME_DIR', 'ANDROID_AVD_HOME', 'ANDROID_EMULATOR_HOME'];
    expect(folders.map(([name]) => name)).toEqual(expect.arrayContaining(writable));
    for (const [, folder] of folders) {
      expect(folder).toMatch(/^\/run\/machine\//);
    }
  });
});

describe('the device of KVM', () => {
  it.each([
    ['all users', 0o20666, 0, []],
    ['its group', 0o20660, 107, [107]],
    ['the group of root', 0o20660, 0, undefined],
    ['nobody but root', 0o20600, 0, undefined],
    ['readers', 0o20664, 0, undefined],
  ])('is for %s', (_, mode, gid, groups) => {
    expect(groupsFor({ mode, gid })).toEqual(groups);
  });
});
