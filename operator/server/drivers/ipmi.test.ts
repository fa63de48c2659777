/** Outputs of ipmitool 1.8.19 at controllers in several states, as it wrote them. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { createDriver } from './create.ts';
import type { PowerDriver } from './driver.ts';
import { makeFolder } from '../../../test/support/folder.ts';

const CREDENTIALS = { username: 'berth', password: 'pass-word' };
/** Lines of each session with `-v`. */
const NOISE =
  'Loading IANA PEN Registry...\nIANA PEN registry open failed: No such file or directory\nRunning Get VSO Capabilities my_addr 0x20, transit 0, target 0x20\nInvalid completion code received: Insufficient privilege level\nDiscovered IPMB address 0x0\n';
const NO_SESSION = 'Error: Unable to establish IPMI v2 / RMCP+ session\n';

let folder: string;
const path = process.env['PATH'];

beforeEach(() => {
  folder = makeFolder();
  process.env['PATH'] = `${folder}:${path}`;
});

afterEach(async () => {
  process.env['PATH'] = path;
});

/** Replaces ipmitool with a program that writes this. */
async function ipmitool(output: string, errors = NOISE, code = 0): Promise<void> {
  await writeFile(join(folder, 'stdout'), output);
  await writeFile(join(folder, 'stderr'), errors);
  const script = `#!/bin/sh\ncd '${folder}'\necho "$*" > arguments\nenv > environment\ncat stdout\ncat stderr >&2\nexit ${code}\n`;
  await writeFile(join(folder, 'ipmitool'), script, { mode: 0o755 });
}

function driver(ipmi: object = {}, limitMilliseconds = 10_000): PowerDriver {
  return createDriver({ ipmi: { address: '192.0.2.1', ...ipmi } }, CREDENTIALS, limitMilliseconds);
}

it('gives ipmitool the password in its environment, and nowhere else', async () => {
  await ipmitool('Chassis Power is on\n');
  await expect(driver().read()).resolves.toBe('On');
  const session = '-I lanplus -L OPERATOR -E -v -N 1 -R 2';
  expect(await readFile(join(folder, 'arguments'), 'utf8')).toBe(
    `${session} -H 192.0.2.1 -p 623 -C 17 -U berth chassis power status\n`,
  );
  const environment = await readFile(join(folder, 'environment'), 'utf8');
  const names = environment.split('\n').map((line) => line.split('=', 1)[0] ?? '');
  // The shell adds its own variables.
  const given = new Set(names.filter((name) => !/^(PWD|OLDPWD|SHLVL|_|)$/.test(name)));
  expect(given).toEqual(new Set(['IPMI_PASSWORD', 'LC_ALL', 'PATH']));
  expect(environment).toContain('IPMI_PASSWORD=pass-word\n');
});

it('reads the power, and sends commands', async () => {
  await ipmitool('Chassis Power is off\n');
  await expect(driver({ port: 9623, cipherSuite: 3 }).read()).resolves.toBe('Off');
  await ipmitool('Chassis Power Control: Up/On\n');
  await expect(driver().send('On')).resolves.toBeUndefined();
  await ipmitool('Chassis Power Control: Down/Off\n');
  await expect(driver().send('Off')).resolves.toBeUndefined();
  expect(await readFile(join(folder, 'arguments'), 'utf8')).toMatch(/ chassis power off\n$/);
});

it.each([
  ['Chassis Power is unknown\n', 'ipmitool wrote "Chassis Power is unknown" instead of the power'],
  [
    'Chassis Power Control: Down/Off\n',
    'ipmitool wrote "Chassis Power Control: Down/Off" instead of the power',
  ],
  ['', 'ipmitool wrote "" instead of the power'],
])('the output %j is no power', async (output, expected) => {
  await ipmitool(output);
  await expect(driver().read()).rejects.toMatchObject({
    reason: 'ControllerFailed',
    message: `IPMI controller 192.0.2.1, port 623: ${expected}`,
  });
});

it('a command without the line of acceptance may have been carried out', async () => {
  await ipmitool('Chassis Power Control: Down/Off\n');
  await expect(driver().send('On')).rejects.toMatchObject({ reason: 'ControllerFailed', isRefusal: false });
});

it.each([
  [
    `> RAKP 2 HMAC is invalid\n${NO_SESSION}`,
    'CredentialsRefused',
    true,
    /: RAKP 2 HMAC is invalid; Unable to/,
  ],
  [
    `RAKP 2 message indicates an error : unauthorized name\n${NO_SESSION}`,
    'CredentialsRefused',
    true,
    /: unauthorized name; Unable to/,
  ],
  [
    'Set Chassis Power Control to Up/On failed: Insufficient privilege level\n',
    'CredentialsRefused',
    true,
    /623: Set Chassis Power Control to Up\/On failed: Insufficient privilege level$/,
  ],
  [
    `Error in open session response message : invalid authentication algorithm\n\n${NO_SESSION}`,
    'ControllerFailed',
    true,
    /another value of spec\.controller\.ipmi\.cipherSuite may be needed$/,
  ],
  [
    `Get Auth Capabilities error\nError issuing Get Channel Authentication Capabilities request\n${NO_SESSION}`,
    'ControllerUnreachable',
    true,
    /: Get Auth Capabilities error; .* Unable to establish IPMI v2 \/ RMCP\+ session$/,
  ],
  ['Set Chassis Power Control to Up/On failed: Node busy\n', 'ControllerFailed', true, /Node busy$/],
  ['Set Chassis Power Control to Up/On failed: Timeout\n', 'ControllerFailed', false, /Timeout$/],
  ['Unable to set Chassis Power Control to Up/On\n', 'ControllerFailed', false, /Unable to set/],
])('ipmitool fails with %j', async (errors, reason, isRefusal, message) => {
  await ipmitool('', NOISE + errors, 1);
  await expect(driver().send('On')).rejects.toMatchObject({
    reason,
    isRefusal,
    message: expect.stringMatching(message) as string,
  });
});

it('after the time limit, nobody knows whether the command was carried out', async () => {
  await writeFile(join(folder, 'ipmitool'), '#!/bin/sh\nexec sleep 60\n', { mode: 0o755 });
  await expect(driver({}, 100).send('On')).rejects.toMatchObject({
    reason: 'ControllerUnreachable',
    isRefusal: false,
    message: 'IPMI controller 192.0.2.1, port 623: no answer came within 0.1 s',
  });
});

it('says that ipmitool is missing', async () => {
  process.env['PATH'] = folder;
  await expect(driver().read()).rejects.toMatchObject({
    reason: 'ControllerFailed',
    message:
      'IPMI controller 192.0.2.1, port 623: the program ipmitool is not installed where the operator runs',
  });
});

it.each([
  [undefined, /^IPMI needs a user name and a password: set spec\.controller\.secretName$/],
  [{ username: 'a'.repeat(17), password: '' }, /^The key username of the Secret must have at most 16 bytes/],
  [{ username: 'a', password: 'é'.repeat(11) }, /^The key password of the Secret must have at most 20 bytes/],
  [{ username: 'a', password: 'b\0' }, /^The key password of the Secret must have .* no control character/],
])('the credentials %j are not usable', (credentials, message) => {
  expect(() => createDriver({ ipmi: { address: 'bmc' } }, credentials)).toThrow(
    expect.objectContaining({
      reason: 'CredentialsMissing',
      message: expect.stringMatching(message) as string,
    }),
  );
});
