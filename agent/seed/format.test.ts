import { expect, test } from 'vitest';
import { isIgnition, userDataNotice, withoutByteOrderMark } from './format.ts';

const IGNITION = '{"ignition":{"version":"3.4.0"}}';

test.each([
  '#cloud-config\npackages: [git]\n',
  '#cloud-config\r\npackages: [git]\r\n',
  '#Cloud-Config\n',
  '#cloud-config-archive\n- content: x\n',
  '#cloud-config-jsonp\n[]',
  '#!/bin/sh\necho\n',
  '#!/bin/sh',
  '#include\nhttps://example.com\n',
  '#include-once https://example.com',
  '#cloud-boothook\n',
  '#part-handler\n',
  '## template: jinja\n#cloud-config\n',
  'Content-Type: multipart/mixed; boundary="x"\nMIME-Version: 1.0\n',
  'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="x"\n',
  'From nobody Mon Jan  1 00:00:00 2024\nContent-Type: multipart/mixed\nMIME-Version: 1.0\n',
  '#ps1_sysnative\r\nWrite-Host\r\n',
  '#ps1\n',
  'rem cmd\r\ndir\r\n',
  '<powershell>x</powershell>',
  IGNITION,
  ` \n${IGNITION}`,
])('the user data %j is read by guests', (userData) => {
  expect(userDataNotice(userData)).toBeUndefined();
});

test.each([
  ['\n#cloud-config\n', 'because it is empty: remove the empty lines before it'],
  ['\r\n\r\n#!/bin/sh\n', 'because it is empty: remove the empty lines before it'],
  ['  \n#cloud-config\n', 'because it is empty: remove the empty lines before it'],
  [' #cloud-config\n', 'because it begins with a space: remove it'],
  ['\t#!/bin/sh\n', 'because it begins with a space: remove it'],
  ['\u00A0#cloud-config\n', 'because it begins with a space: remove it'],
  ['\u200B#cloud-config\n', 'because it begins with a space: remove it'],
  ['\uFEFF\uFEFF#cloud-config\n', 'because it begins with a space: remove it'],
  ['# cloud-config\n', 'because there is a space after #: remove it'],
  ['#\0c\0l\0o\0u\0d\0-\0c\0o\0n\0f\0i\0g\0', 'because it is UTF-16: write it as UTF-8'],
  ['   \n \n', 'because it is empty'],
  [
    Buffer.from('#cloud-config\npackages: [git]\n').toString('base64'),
    'because it is base64: write the decoded text',
  ],
  ['packages: [git]\n', 'reads. cloud-init reads'],
  ['---\n#cloud-config\n', 'reads. cloud-init reads'],
  ['#cloudconfig\n', 'reads. cloud-init reads'],
  ['variant: fcos\nversion: 1.5.0\n', 'reads. cloud-init reads'],
  ['{"ignition":{}}', 'reads. cloud-init reads'],
  ['{"ignition":{"version":"3.4.0"}', 'reads. cloud-init reads'],
])('the user data %j may be ignored', (userData, words) => {
  const notice = userDataNotice(userData);
  expect(notice).toContain('Its first line is none that cloud-init or Ignition reads');
  expect(notice).toContain(words);
  expect(notice).not.toContain('packages');
});

test('a script whose first line ends with a carriage return is told', () => {
  expect(userDataNotice('#!/bin/sh\r\necho\r\n')).toContain('ends with a carriage return');
});

test('a byte order mark is removed, and its removal is told', () => {
  for (const text of ['#cloud-config\r\n', IGNITION]) {
    expect(withoutByteOrderMark(`\uFEFF${text}`)).toBe(text);
    expect(userDataNotice(`\uFEFF${text}`)).toBe('The byte order mark at its beginning was removed');
    expect(isIgnition(withoutByteOrderMark(`\uFEFF${text}`))).toBe(text === IGNITION);
  }
  expect(userDataNotice('\uFEFFpackages: [git]\n')).toMatch(
    /^The byte order mark .*removed\. Its first line is none/,
  );
});
