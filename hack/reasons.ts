/**
 * Writes docs/reference/reasons.md from the catalogue of reasons.
 *
 *   reasons.ts            writes it
 *   reasons.ts --check    exits 1 when it is not current
 */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import {
  classOf,
  type Reason,
  REASON_CLASSES,
  REASONS,
  type ReasonEntry,
  type ReasonKind,
} from '../api/v1alpha1/reasons.ts';
import { runCommand } from './command.ts';

const PAGE = join(import.meta.dirname, '..', 'docs', 'reference', 'reasons.md');

const TITLES: Readonly<Record<ReasonKind, string>> = {
  VM: 'VM',
  Image: 'Image and ISO',
  ImageCacheEntry: 'ImageCacheEntry',
  Node: 'Node',
  CertificateSigningRequest: 'CertificateSigningRequest',
  Pod: 'Pod',
};

const HEAD = `# Reasons

A reason is one word for machines. It stands in a condition, in an Event or in the state of a container, beside a message for people.
This page is made from the catalogue in the code (\`make generate\`). A host of another version may say words that are not listed here.

## Classes

`;

function classes(): string {
  const rows = Object.entries(REASON_CLASSES).map(([name, says]) => `| ${name} | ${says} |`);
  return ['| class | meaning |', '| --- | --- |', ...rows].join('\n');
}

function row(kind: ReasonKind, [word, { seen, by, says, todo = '' }]: [Reason, ReasonEntry]): string {
  const where = (seen[kind] ?? []).map((one) => (one === 'Event' ? one : `\`${one}\``)).join(', ');
  return `| \`${word}\` | ${where} | ${classOf(word, kind) ?? ''} | ${by} | ${says} | ${todo} |`;
}

function section(kind: ReasonKind): string {
  const entries = Object.entries(REASONS) as [Reason, ReasonEntry][];
  const rows = entries
    .filter(([, { seen }]) => seen[kind] !== undefined)
    .toSorted(([one], [other]) => one.localeCompare(other, 'en'))
    .map((entry) => row(kind, entry));
  const head = [
    '| reason | where | class | said by | meaning | what to do |',
    '| --- | --- | --- | --- | --- | --- |',
  ];
  return [`## ${TITLES[kind]}`, '', ...head, ...rows].join('\n');
}

function page(): string {
  const sections = (Object.keys(TITLES) as ReasonKind[]).map(section);
  return `${[HEAD + classes(), ...sections].join('\n\n')}\n`;
}

async function main(): Promise<number> {
  const { values } = parseArgs({ options: { check: { type: 'boolean', default: false } } });
  if (!values.check) {
    await writeFile(PAGE, page());
    return 0;
  }
  if ((await readFile(PAGE, 'utf8')) !== page()) {
    console.error('docs/reference/reasons.md is not what the catalogue says: run make generate');
    return 1;
  }
  return 0;
}

if (import.meta.main) {
  await runCommand(main);
}
