import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { afterAll, expect, it } from 'vitest';
import { CommandError, EXIT } from '../errors.ts';
import { addMachineFlags, addOwnFlags, tableValues } from './machineflags.ts';

const KEY = `ssh-ed25519 AAAAC3NzaC1lZDI1NTE5${'A'.repeat(48)}`;
const folder = mkdtempSync(join(tmpdir(), 'berth-flags-'));
const keys = join(folder, 'id.pub');
writeFileSync(keys, `# mine\n${KEY} me@desk\n\n${KEY}\n`);
const foreign = join(folder, 'foreign.pub');
writeFileSync(foreign, `${KEY} José im Büro\n`);
const secret = join(folder, 'id');
writeFileSync(secret, '-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU\n');
const script = join(folder, 'setup.yaml');
writeFileSync(script, '#cloud-config\npackages: [git]\n');
const binary = join(folder, 'binary');
writeFileSync(binary, Buffer.from([0xff, 0xfe]));
const long = join(folder, 'long');
writeFileSync(long, 'x'.repeat(64 * 1024 + 1));

afterAll(() => rmSync(folder, { recursive: true }));

/** Returns the fields of a VM for the flags. */
function fields(...args: string[]): object {
  const command = new Command().exitOverride().configureOutput({ writeErr: () => undefined });
  addOwnFlags(addMachineFlags(command)).parse(args, { from: 'user' });
  return tableValues(command.opts());
}

it.each([
  [['--readiness', 'none'], { readiness: { type: 'None' } }],
  [['--readiness', 'ssh'], { readiness: { type: 'SSH' } }],
  [['--readiness', 'guest-agent'], { readiness: { type: 'GuestAgent' } }],
  [['--readiness', '22'], { readiness: { type: 'Port', port: 22 } }],
  [['--disk-size', '20'], { diskSize: '20G' }],
  [['--architecture', 'arm64', '--memory', '2'], { architecture: 'arm64', memory: '2048Mi' }],
  [['--start', 'Cold'], { start: 'Cold' }],
  [['--ssh-key', KEY, '--ssh-key', keys], { sshAuthorizedKeys: [KEY, `${KEY} me@desk`, KEY] }],
  [['--ssh-key', `${KEY} ann@büro`, '--ssh-key', foreign], { sshAuthorizedKeys: [KEY, KEY] }],
  [['--ssh-key', ''], { sshAuthorizedKeys: [] }],
  [['--user-data', script], { userData: '#cloud-config\npackages: [git]\n' }],
  [['--user-data-secret', 'setup'], { userDataSecretRef: { name: 'setup', key: 'user-data' } }],
  [['--user-data-secret', 'setup/ignition'], { userDataSecretRef: { name: 'setup', key: 'ignition' } }],
])('%j gives the fields %j', (args, expected) => {
  expect(fields(...args)).toEqual(expected);
});

it.each([
  ['--readiness', 'ssh-ish', 'none, ssh, guest-agent, or the number of a TCP port'],
  ['--architecture', 'x86', 'Allowed choices are amd64, arm64'],
  ['--start', 'cold', 'Allowed choices are Auto, Cold'],
  ['--disk-size', 'much', 'such as 120G or 100Gi'],
  ['--ssh-key', secret, 'is a private key, which must stay on this computer'],
  ['--ssh-key', script, 'must have one public SSH key in each line'],
  ['--ssh-key', join(folder, 'absent'), 'does not exist'],
  ['--user-data', folder, 'EISDIR'],
  ['--user-data-secret', 'setup/a/b', 'It must be NAME, or NAME/KEY'],
  ['--user-data-secret', 'setup/', 'It must be NAME, or NAME/KEY'],
  ['--user-data', binary, 'is not a text in UTF-8'],
  ['--user-data', long, 'has 65537 bytes, but at most 65536 are allowed'],
])('%s refuses %s, and names the flag and the reason', (flag, value, reason) => {
  expect(() => fields(flag, value)).toThrow(reason);
  expect(() => fields(flag, value)).toThrow(flag);
});

it.each(['--ssh-key', '--user-data'])('%s repeats no content that stands in the place of a path', (flag) => {
  const content = '-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----';
  for (const value of [content, content.replaceAll('\n', ' '), 'c2VjcmV0'.repeat(1_000)]) {
    const message = 'A flag has the content of a file, but must have its path';
    expect(() => fields(flag, value)).toThrow(new CommandError(message, EXIT.usage));
  }
});
