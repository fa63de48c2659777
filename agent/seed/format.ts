/** Recognizes user data that the programs in guests would ignore although it looks right. No message contains any part of the user data. */
import * as z from 'zod';
import { parseDocument } from '../../api/v1alpha1/machine.ts';

const BYTE_ORDER_MARK = '\uFEFF';

/**
 * Beginnings of user data that cloud-init (from `#cloud-config` on) and cloudbase-init for Windows (from `#ps1` on) read, in lower case.
 * cloud-init compares only the beginning, so `#include` stands for `#include-once` too, and `#cloud-config` for its variants.
 */
const BEGINNINGS = [
  '#cloud-config',
  '#!',
  '#include',
  '#cloud-boothook',
  '#part-handler',
  '#upstart-job',
  '## template:',
  'content-type: multipart/',
  '#ps1',
  'rem cmd',
  '<powershell>',
  '<script>',
] as const;
/** cloud-init reads user data as a MIME message if it finds this header in its first characters. */
const MIME_HEADER = 'mime-version:';
const MIME_CHARACTERS = 4096;
/** Number of bytes of a decoded base64 text that are looked at. */
const DECODED_BYTES = 64;

const ignitionSchema = z.object({ ignition: z.object({ version: z.string() }) });

/** Returns whether user data is an Ignition config. */
export function isIgnition(userData: string | undefined): userData is string {
  return ignitionSchema.safeParse(parseDocument(userData)).success;
}

/**
 * Returns user data without a byte order mark at its beginning. Editors and shells of Windows write this mark, and it keeps guests from
 * reading the first line.
 */
export function withoutByteOrderMark(userData: string): string {
  return userData.startsWith(BYTE_ORDER_MARK) ? userData.slice(1) : userData;
}

/**
 * Returns a text that tells why guests may ignore user data, or what was changed in it. Returns undefined if nothing is wrong. `userData` is
 * the data as the user gave it.
 */
export function userDataNotice(userData: string): string | undefined {
  const text = withoutByteOrderMark(userData);
  const mistake = mistakeIn(text);
  const removed = text === userData ? [] : ['The byte order mark at its beginning was removed'];
  const notices = [...removed, ...(mistake === undefined ? [] : [mistake])];
  return notices.length === 0 ? undefined : notices.join('. ');
}

function mistakeIn(text: string): string | undefined {
  if (isIgnition(text)) {
    return undefined;
  }
  if (isRead(text)) {
    // A script is started as a program, and the kernel takes the carriage return for a part of the interpreter's name.
    return /^#!.*\r\n/.test(text)
      ? 'Its first line ends with a carriage return, so no guest finds the interpreter of this script: use lines that end with a line feed'
      : undefined;
  }
  const cause = causeOf(text);
  return `Its first line is none that cloud-init or Ignition reads${cause}. cloud-init reads, for example, #cloud-config and #!/bin/sh`;
}

/** Returns whether cloud-init or cloudbase-init reads user data that begins so. */
function isRead(text: string): boolean {
  const lower = text.slice(0, MIME_CHARACTERS).toLowerCase();
  return BEGINNINGS.some((beginning) => lower.startsWith(beginning)) || lower.includes(MIME_HEADER);
}

/** Returns the probable cause as a part of a sentence, or an empty text. */
function causeOf(text: string): string {
  if (text.includes('\0')) {
    return ', because it is UTF-16: write it as UTF-8';
  }
  if (/^\s*$/.test(text)) {
    return ', because it is empty';
  }
  const trimmed = text.replace(/^[\s\u200B\uFEFF]+/, '');
  if (trimmed !== text && (isRead(trimmed) || isIgnition(trimmed))) {
    return /^[^\S\r\n]*\r?\n/.test(text)
      ? ', because it is empty: remove the empty lines before it'
      : ', because it begins with a space: remove it';
  }
  if (/^#\s+(cloud-config|!)/i.test(trimmed)) {
    return ', because there is a space after #: remove it';
  }
  return isRead(decoded(text)) ? ', because it is base64: write the decoded text' : '';
}

/** Returns the beginning of the text that a base64 text stands for, or an empty text if it is no base64. */
function decoded(text: string): string {
  const begin = /^[A-Za-z0-9+/]{16,}/.exec(text)?.[0] ?? '';
  return Buffer.from(begin, 'base64').toString('utf8', 0, DECODED_BYTES);
}
